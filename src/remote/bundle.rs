//! Bundles: commits of the log in one object, so that many are read at once.
//!
//! Owns the format of a bundle:
//!
//! ```text
//! "HFBNDL\r\n" | version u16 | from u64 | upto u64 | commits u32 | lacking u32
//! lacking  stamp 20, of commits that its writer could not read
//! commits  stamp 20 | bytes u32 | the commit as it lies in the log
//! checksum 32
//! ```
//!
//! Numbers are little-endian, a stamp is milliseconds 8, counter 4, node 8; both lists are in ascending order. The
//! checksum is BLAKE3 over all before it. Every later version keeps magic, version and checksum where they are. Must
//! never decode the commits: each has limits of its own, and a reader holds one at a time.

use bytes::Bytes;

use super::codec::COMMIT_BYTES_MAX;
use super::keys::{self, BundleName};
use super::store::Remote;
use crate::error::{Error, Kind, Result};
use crate::stamp::{NodeId, Stamp};

/// The largest bundle. A node holds one in memory.
pub const BUNDLE_BYTES_MAX: u64 = 64 << 20;
/// The most commits in one bundle, with those that are lacking.
pub const BUNDLE_COMMITS_MAX: usize = 65_536;

const MAGIC: &[u8; 8] = b"HFBNDL\r\n";
const VERSION: u16 = 1;
const HEAD_BYTES: usize = MAGIC.len() + 2 + 8 + 8 + 4 + 4;
const STAMP_BYTES: usize = 8 + 4 + 8;
const SUM_BYTES: usize = 32;

/// All commits of the log whose names lie in a period. It may hold others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    /// The bundle covers names from this time on, in milliseconds, ...
    pub from_ms: u64,
    /// ... up to before this one.
    pub upto_ms: u64,
    /// Commits that the log listed and that could not be read, ascending.
    pub lacking: Vec<Stamp>,
    /// The commits as they lie in the log, ascending.
    pub commits: Vec<(Stamp, Bytes)>,
}

impl Bundle {
    /// Returns how large it is when it is encoded.
    pub fn bytes(&self) -> u64 {
        let commits = self.commits.iter().map(|(_, bytes)| STAMP_BYTES + 4 + bytes.len());
        let lacking = self.lacking.len() * STAMP_BYTES;
        (HEAD_BYTES + lacking + commits.sum::<usize>() + SUM_BYTES) as u64
    }

    /// Encodes it, if readers will accept it.
    ///
    /// # Errors
    ///
    /// `Invalid` above the limits of bytes and commits, or when stamps do not ascend.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let refuse = |what: &str| Error::new(Kind::Invalid, format!("bundle {what}"));
        let (commits, lacking) = (self.commits.len(), self.lacking.len());
        if commits + lacking > BUNDLE_COMMITS_MAX || self.bytes() > BUNDLE_BYTES_MAX {
            return Err(refuse("is too large"));
        }
        if !ascends(&self.lacking) || !ascends(self.commits.iter().map(|(stamp, _)| stamp)) {
            return Err(refuse("is out of order"));
        }
        let mut bytes = Vec::with_capacity(self.bytes() as usize);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.from_ms.to_le_bytes());
        bytes.extend_from_slice(&self.upto_ms.to_le_bytes());
        bytes.extend_from_slice(&(commits as u32).to_le_bytes());
        bytes.extend_from_slice(&(lacking as u32).to_le_bytes());
        for stamp in &self.lacking {
            put_stamp(&mut bytes, stamp);
        }
        for (stamp, commit) in &self.commits {
            put_stamp(&mut bytes, stamp);
            bytes.extend_from_slice(&(commit.len() as u32).to_le_bytes());
            bytes.extend_from_slice(commit);
        }
        bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
        Ok(bytes)
    }

    /// Decodes it; the commits are parts of `bytes`.
    ///
    /// # Errors
    ///
    /// `Corrupt` for damage, `Invalid` for a newer format.
    pub fn decode(bytes: &Bytes) -> Result<Self> {
        if bytes.len() < HEAD_BYTES + SUM_BYTES || bytes.len() as u64 > BUNDLE_BYTES_MAX {
            return Err(damaged("its size is impossible"));
        }
        let body = bytes.slice(..bytes.len() - SUM_BYTES);
        if &body[..MAGIC.len()] != MAGIC {
            return Err(damaged("its start is not that of a bundle"));
        }
        if blake3::hash(&body).as_bytes() != &bytes[body.len()..] {
            return Err(damaged("its checksum differs"));
        }
        let mut rest = Rest(body.slice(MAGIC.len()..));
        let version = u16::from_le_bytes(rest.array()?);
        if version != VERSION {
            let op = format!("bundle has the newer format {version}, this version knows {VERSION}");
            return Err(Error::new(Kind::Invalid, op));
        }
        let (from_ms, upto_ms) = (rest.long()?, rest.long()?);
        let (count, absent) = (rest.short()? as usize, rest.short()? as usize);
        if count.saturating_add(absent) > BUNDLE_COMMITS_MAX {
            return Err(damaged("it holds too many commits"));
        }
        let lacking = (0..absent).map(|_| rest.stamp()).collect::<Result<Vec<_>>>()?;
        let mut commits = Vec::with_capacity(count);
        for _ in 0..count {
            let (stamp, size) = (rest.stamp()?, rest.short()? as usize);
            if size > COMMIT_BYTES_MAX {
                return Err(damaged("a commit is too large"));
            }
            commits.push((stamp, rest.take(size)?));
        }
        let whole = rest.0.is_empty() && from_ms < upto_ms;
        if !whole || !ascends(&lacking) || !ascends(commits.iter().map(|(stamp, _)| stamp)) {
            return Err(damaged("its content differs from its head"));
        }
        Ok(Self { from_ms, upto_ms, lacking, commits })
    }
}

impl Remote {
    /// Reads a bundle.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is gone, `Corrupt` for damage or the name of another, `Invalid` for a newer format;
    /// `Unavailable` or `TimedOut` while the store does not answer, `Denied` or `Invalid` when it refuses.
    pub async fn get_bundle(&self, name: &BundleName) -> Result<Bundle> {
        let key = self.inner.keys.bundle(name);
        let bytes = self.read(key, None, BUNDLE_BYTES_MAX).await?;
        let bundle = crate::task::blocking(move || Bundle::decode(&bytes)).await?;
        if (bundle.from_ms, bundle.upto_ms) != (name.from_ms, name.upto.ms) {
            return Err(damaged("it has the name of another"));
        }
        Ok(bundle)
    }

    /// Writes a bundle. Writing it again is harmless.
    ///
    /// # Errors
    ///
    /// `Invalid` when readers would refuse it; `Denied` on a read-only mount; otherwise `Unavailable` or `TimedOut`
    /// while the store does not answer, `Denied` or `Invalid` when it refuses.
    pub async fn put_bundle(&self, name: &BundleName, bundle: &Bundle) -> Result<()> {
        let bytes = Bytes::from(bundle.encode()?);
        self.write(self.inner.keys.bundle(name), bytes, BUNDLE_BYTES_MAX).await
    }
}

fn ascends<'a>(stamps: impl IntoIterator<Item = &'a Stamp>) -> bool {
    let mut stamps = stamps.into_iter();
    let Some(mut last) = stamps.next() else { return true };
    stamps.all(|stamp| std::mem::replace(&mut last, stamp) < stamp)
}

fn put_stamp(bytes: &mut Vec<u8>, stamp: &Stamp) {
    bytes.extend_from_slice(&stamp.ms.to_le_bytes());
    bytes.extend_from_slice(&stamp.counter.to_le_bytes());
    bytes.extend_from_slice(&stamp.node.0.to_le_bytes());
}

fn damaged(what: &str) -> Error {
    Error::new(Kind::Corrupt, format!("bundle is damaged: {what}"))
}

/// The bytes that are not decoded yet.
struct Rest(Bytes);

impl Rest {
    fn take(&mut self, size: usize) -> Result<Bytes> {
        if size > self.0.len() {
            return Err(damaged("it ends too early"));
        }
        Ok(self.0.split_to(size))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N)?;
        Ok(bytes[..].try_into().expect("`take` returns as many bytes as asked"))
    }

    fn long(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn short(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn stamp(&mut self) -> Result<Stamp> {
        Ok(Stamp { ms: self.long()?, counter: self.short()?, node: NodeId(self.long()?) })
    }
}

/// Returns the stamp of a bundle from its name in a list.
pub(super) fn listed(name: &str) -> Option<Stamp> {
    keys::checkpoint_stamp(name).or_else(|| Some(BundleName::parse(name)?.upto))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(ms: u64) -> Stamp {
        Stamp { ms, counter: 7, node: NodeId(9) }
    }

    fn bundle() -> Bundle {
        let commits = (10..15).map(|ms| (stamp(ms), Bytes::from(vec![ms as u8; ms as usize])));
        Bundle { from_ms: 9, upto_ms: 20, lacking: vec![stamp(16)], commits: commits.collect() }
    }

    /// Appends the right checksum to a changed body.
    fn sealed(mut body: Vec<u8>) -> Bytes {
        body.truncate(body.len() - SUM_BYTES);
        body.extend_from_slice(blake3::hash(&body).as_bytes());
        Bytes::from(body)
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        for bundle in [
            bundle(),
            Bundle { lacking: Vec::new(), ..bundle() },
            Bundle { commits: Vec::new(), ..bundle() },
        ] {
            let bytes = Bytes::from(bundle.encode().unwrap());
            assert_eq!(bytes.len() as u64, bundle.bytes());
            assert_eq!(Bundle::decode(&bytes).unwrap(), bundle);
        }
    }

    #[test]
    fn bytes_that_no_writer_makes_are_refused() {
        let good = bundle().encode().unwrap();
        for size in 0..good.len() {
            let error = Bundle::decode(&Bytes::from(good[..size].to_vec())).expect_err("cut");
            assert_eq!(error.kind(), Kind::Corrupt, "{size}");
        }
        for at in 0..good.len() {
            let mut flipped = good.clone();
            flipped[at] ^= 1;
            assert!(Bundle::decode(&Bytes::from(flipped)).is_err(), "{at}");
        }
        let mut newer = good.clone();
        newer[8] = 2;
        assert_eq!(Bundle::decode(&sealed(newer)).expect_err("newer").kind(), Kind::Invalid);
        // More commits than the bundle has, more than are allowed, one above its limit, an empty period.
        let size_at = HEAD_BYTES + STAMP_BYTES + STAMP_BYTES;
        for (at, value) in
            [(26, 6_u32), (26, u32::MAX), (30, u32::MAX), (size_at, u32::MAX), (18, 9)]
        {
            let mut bad = good.clone();
            bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
            assert_eq!(
                Bundle::decode(&sealed(bad)).expect_err("bad bytes").kind(),
                Kind::Corrupt,
                "{at}"
            );
        }
        let mut longer = good.clone();
        longer.push(0);
        assert_eq!(
            Bundle::decode(&sealed(longer)).expect_err("trailing bytes").kind(),
            Kind::Corrupt
        );
    }

    #[test]
    fn what_readers_would_refuse_is_not_written() {
        let mut twice = bundle();
        twice.commits.push(twice.commits[4].clone());
        let many = vec![(stamp(1), Bytes::new()); BUNDLE_COMMITS_MAX + 1];
        let large = vec![(stamp(1), Bytes::from(vec![0; BUNDLE_BYTES_MAX as usize]))];
        for bad in
            [twice, Bundle { commits: many, ..bundle() }, Bundle { commits: large, ..bundle() }]
        {
            assert_eq!(bad.encode().expect_err("refused").kind(), Kind::Invalid);
        }
    }
}
