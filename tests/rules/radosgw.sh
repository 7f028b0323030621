#!/usr/bin/env bash
# Brings up a Ceph of one monitor, one manager, one disk in memory and one gateway on the loopback, in which a
# "day" of a lifecycle rule lasts ten seconds, with a bucket `bkt`. For the tests that watch a real server
# delete by our rule:
#
#   tests/rules/radosgw.sh up DIR [PORT]     prints the address
#   HEARTHFS_RGW=http://127.0.0.1:PORT cargo test --test lifecycle --test mounts rgw_
#   tests/rules/radosgw.sh down DIR
#
# Needs root and the packages radosgw, ceph-mon, ceph-mgr, ceph-osd, ceph-common and curl. `.ci/run` does all of it.
# It also uses the port after PORT.
set -euo pipefail

word=${1:?up or down}
dir=$(realpath -m "${2:?a directory}")
port=${3:-17480}
key=testkey
secret=testsecret

# How long the daemons may take to end before they are killed; their data is in memory.
end_limit_s=3

if [ "$word" = down ]; then
    # A daemon removes its file when it ends, so the ids are read first.
    pids=()
    for file in "$dir"/*.pid; do
        [ -s "$file" ] && pids+=("$(cat "$file")")
    done
    [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
    for pid in "${pids[@]}"; do
        while kill -0 "$pid" 2>/dev/null && [ $SECONDS -lt $end_limit_s ]; do
            sleep 0.1
        done
        kill -9 "$pid" 2>/dev/null || true
    done
    # Other processes may have these ids later.
    rm -f "$dir"/*.pid
    exit 0
fi

mkdir -p "$dir"/{mon,mgr,osd}
fsid=$(cat /proc/sys/kernel/random/uuid)
disk=$(cat /proc/sys/kernel/random/uuid)
monitor="[v1:127.0.0.1:$((port + 1))]"
keyring=$dir/keyring
cat >"$dir/ceph.conf" <<CONF
[global]
fsid = $fsid
mon host = $monitor
keyring = $keyring
run dir = $dir
admin socket = $dir/\$name.asok
log file = $dir/\$name.log
pid file = $dir/\$name.pid
public addr = 127.0.0.1
ms bind msgr2 = false
osd objectstore = memstore
osd memory target = 1073741824
osd pool default size = 1
osd pool default pg num = 4
osd crush chooseleaf type = 0
mon allow pool size one = true
[mon.a]
mon data = $dir/mon
[mgr.x]
mgr data = $dir/mgr
[osd.0]
osd data = $dir/osd
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:$port tcp_nodelay=1
rgw lc debug interval = 10
CONF

ceph-authtool --create-keyring "$keyring" --gen-key -n mon. --cap mon 'allow *' >/dev/null
grant() {
    local name=$1
    shift
    ceph-authtool "$keyring" --gen-key -n "$name" "$@" >/dev/null
}
grant client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
grant mgr.x --cap mon 'allow profile mgr' --cap osd 'allow *'
grant osd.0 --cap mon 'allow profile osd' --cap mgr 'allow profile osd' --cap osd 'allow *'
grant client.rgw --cap mon 'allow rwx' --cap osd 'allow rwx' --cap mgr 'allow rw'
monmaptool --create --addv a "$monitor" --fsid "$fsid" "$dir/monmap" >/dev/null

ceph=(-c "$dir/ceph.conf")
{
    ceph-mon "${ceph[@]}" --mkfs -i a --monmap "$dir/monmap" --keyring "$keyring"
    ceph-mon "${ceph[@]}" -i a
    ceph-mgr "${ceph[@]}" -i x
    timeout 60 ceph "${ceph[@]}" osd new "$disk" 0
    ceph-osd "${ceph[@]}" -i 0 --mkfs --osd-uuid "$disk" --keyring "$keyring"
    ceph-osd "${ceph[@]}" -i 0
    radosgw "${ceph[@]}" -n client.rgw
} >&2
for _ in $(seq 120); do
    if curl -s -o "$dir/answer" "http://127.0.0.1:$port"; then break; fi
    sleep 0.5
done
radosgw-admin "${ceph[@]}" user create --uid=t --display-name=t \
    --access-key="$key" --secret-key="$secret" >/dev/null
# Older versions of curl do not send the digest of an empty body.
empty=$(printf '' | sha256sum | cut -d ' ' -f 1)
curl -sf --aws-sigv4 aws:amz:us-east-1:s3 --user "$key:$secret" -H "x-amz-content-sha256: $empty" \
    -X PUT "http://127.0.0.1:$port/bkt" >&2
echo "http://127.0.0.1:$port"
