#!/bin/sh
# Boots the machine's own systemd as PID 1 of new namespaces, with its own root, and waits for its end.
#
#   systemd.sh SITE PROGRAM UNITS
#
# SITE/disk and SITE/store are the disk and the shared directory inside; SITE/etc/hearthfs is /etc/hearthfs.
# The caller kills it by its process id; everything inside ends with it.
set -eu

if [ "${1-}" != --inside ]; then
    cgroups=$(awk '{ for (i = 7; $i != "-"; i++); if ($(i + 1) == "cgroup2") print $5 }' /proc/self/mountinfo | tail -1)
    own=$cgroups/hearthfs-test-$$
    mkdir "$own"
    echo $$ >"$own/cgroup.procs"
    exec unshare --fork --pid --mount --uts --ipc --cgroup --kill-child -- "$0" --inside "$@"
fi

shift
site=$1 program=$2 units=$3
root=$site/root
mount --make-rprivate /
mkdir -p "$root"
mount -t tmpfs tmpfs "$root"
cd "$root"
mkdir -p usr etc/systemd/system etc/hearthfs run var/log/journal var/cache/hearthfs srv/store dev proc sys tmp mnt/cache old
for link in bin sbin lib lib64; do
    if [ -e "/usr/$link" ]; then ln -s "usr/$link" "$link"; fi
done
# Nothing inside may change the programs of the machine or, by a boot of systemd, its kernel.
mount --rbind /usr usr
mount -o remount,bind,ro usr
for wants in usr/lib/systemd/system/*.wants; do mount -t tmpfs tmpfs "$wants"; done
for part in passwd group nsswitch.conf ld.so.cache alternatives ssl; do
    if [ -e "/etc/$part" ]; then cp -a "/etc/$part" etc/; fi
done
echo 0123456789abcdef0123456789abcdef >etc/machine-id
mount --bind "$site/disk" var/cache/hearthfs
mount --bind "$site/store" srv/store
mount --bind "$site/etc/hearthfs" etc/hearthfs
# Where the units look for the program.
mkdir opt
touch opt/hearthfs
mount --bind "$program" opt/hearthfs
for unit in "$units"/*.service "$units"/*.timer; do
    sed 's|/usr/bin/hearthfs|/opt/hearthfs|' "$unit" >"etc/systemd/system/${unit##*/}"
done
cat >etc/systemd/system/test.target <<UNIT
[Unit]
Requires=systemd-journald.socket
After=systemd-journald.socket
AllowIsolate=yes
UNIT
mount -t tmpfs tmpfs dev
for node in null zero full random urandom tty fuse autofs; do
    if [ -e "/dev/$node" ]; then
        touch "dev/$node"
        mount --bind "/dev/$node" "dev/$node"
    fi
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
# Where mount(8) looks for its helpers.
mkdir sbin-here
cp -a /usr/sbin/. sbin-here/ 2>/dev/null || true
ln -s /opt/hearthfs sbin-here/mount.hearthfs
mount --bind sbin-here usr/sbin
pivot_root . old
cd /
umount -l /old
# As on a booted machine, a mount is visible everywhere unless a unit hides it.
mount --make-rshared /
exec env -i container=hearthfs-test PATH=/usr/sbin:/usr/bin SYSTEMD_LOG_TARGET=journal \
    /usr/lib/systemd/systemd --system --unit=test.target
