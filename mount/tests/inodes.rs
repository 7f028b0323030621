//! Versions, mappings, programs, listings and waiting, on real mounts.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a failed `unwrap` or `expect` fails the test"
)]

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::time::Duration;

use common::shelf::{Manners, Way};
use common::{Mounted, each_way};

/// A mapping that is removed on drop.
struct Map(*mut libc::c_void, usize);

impl Map {
    fn new(file: &File, len: usize, protection: i32, flags: i32) -> Result<Self, std::io::Error> {
        // SAFETY: a fresh mapping at an address of the kernel's choice, unmapped in drop.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            Err(std::io::Error::last_os_error())
        } else {
            Ok(Self(address, len))
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is that long and readable while `self` lives.
        unsafe { std::slice::from_raw_parts(self.0.cast(), self.1) }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.1);
        // SAFETY: within the mapping, which the test made writable.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.cast::<u8>().add(at), bytes.len());
        }
    }

    fn sync(&self) {
        // SAFETY: exactly the mapping.
        assert_eq!(unsafe { libc::msync(self.0, self.1, libc::MS_SYNC) }, 0);
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping, and nothing borrows it any more.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

#[test]
fn a_truncating_open_leads_to_another_inode() {
    each_way("a_truncating_open_leads_to_another_inode", |way| {
        let m = Mounted::new(Manners { versions: true, ..Manners::new(way) });
        let path = m.path("f");
        fs::write(&path, [b'1'; 9000]).unwrap();
        for round in 2..6u8 {
            let old = m.shelf.ino_of("f").unwrap();
            let before = b'0' + round - 1;
            let reader = File::open(&path).unwrap();
            let shared = Map::new(&reader, 9000, libc::PROT_READ, libc::MAP_SHARED).unwrap();
            let private =
                Map::new(&reader, 9000, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE)
                    .unwrap();
            assert_eq!(shared.bytes()[0], before);

            drop(m.shelf.take_trace());
            let mut writer = OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
            let trace = m.shelf.take_trace().join(" ");
            // Two opens: one finds that the name now leads elsewhere, one opens that.
            assert!(trace.ends_with("open lookup lookup open"), "{trace}");
            writer.write_all(&[b'0' + round; 4000]).unwrap();
            assert_ne!(m.shelf.ino_of("f").unwrap(), old);
            assert_ne!(writer.metadata().unwrap().ino(), old);
            drop(writer);

            let mut body = Vec::new();
            (&reader).read_to_end(&mut body).unwrap();
            assert_eq!(body, vec![before; 9000], "the open file keeps its version");
            assert_eq!(shared.bytes(), vec![before; 9000], "a mapping keeps its version");
            assert_eq!(private.bytes(), vec![before; 9000]);
            assert_eq!(fs::read(&path).unwrap(), vec![b'0' + round; 4000]);
            // As long as the next round's first read.
            fs::write(&path, vec![b'0' + round; 9000]).unwrap();
        }
    });
}

#[test]
fn many_threads_truncate_one_name() {
    each_way("many_threads_truncate_one_name", |way| {
        let m = Mounted::new(Manners { versions: true, ..Manners::new(way) });
        let path = m.path("f");
        fs::write(&path, "start").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| drop(fs::read(&path).unwrap())));
            }
            // Only one writer: otherwise a published inode could be replaced twice within one open.
            scope.spawn(|| (0..50).for_each(|i| fs::write(&path, format!("round {i}")).unwrap()));
        });
        assert_eq!(fs::read(&path).unwrap(), b"round 49");
    });
}

#[test]
fn shared_and_private_mappings() {
    each_way("shared_and_private_mappings", |way| {
        let m = Mounted::new(Manners::new(way));
        let path = m.path("f");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        file.set_len(20_000).unwrap();
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let shared = Map::new(&file, 20_000, both, libc::MAP_SHARED).unwrap();
        shared.write(12_345, b"through the map");
        shared.sync();
        let mut word = [0; 15];
        File::open(&path).unwrap().read_exact_at(&mut word, 12_345).unwrap();
        assert_eq!(&word, b"through the map");

        let private = Map::new(&file, 20_000, both, libc::MAP_PRIVATE).unwrap();
        assert_eq!(&private.bytes()[12_345..12_360], b"through the map");
        private.write(0, b"mine alone");
        file.read_exact_at(&mut word, 0).unwrap();
        assert_eq!(word, [0; 15]);
        // A mapping survives its descriptor and its name.
        drop(file);
        fs::remove_file(&path).unwrap();
        shared.write(0, b"still here");
        shared.sync();
        assert_eq!(&shared.bytes()[..10], b"still here");
    });
}

#[test]
fn programs_run_from_the_mount() {
    each_way("programs_run_from_the_mount", |way| {
        let m = Mounted::new(Manners::new(way));
        fs::copy("/bin/echo", m.path("echo")).unwrap();
        fs::set_permissions(m.path("echo"), fs::Permissions::from_mode(0o755)).unwrap();
        let said = std::process::Command::new(m.path("echo")).arg("hello").output().unwrap();
        assert_eq!(said.stdout, b"hello\n");
    });
}

#[test]
fn listing_offsets_stay_where_they_are() {
    const NAMES: usize = 10_000;
    each_way("listing_offsets_stay_where_they_are", |way| {
        let m = Mounted::new(Manners::new(way));
        for i in 0..NAMES {
            m.shelf.create_behind(&format!("name-{i:05}"));
        }
        let listed = |change: bool| {
            let mut seen = Vec::new();
            for (i, entry) in fs::read_dir(m.path("")).unwrap().enumerate() {
                let entry = entry.unwrap();
                seen.push(entry.file_name().into_string().unwrap());
                if change && i % 100 == 0 {
                    // Names that come and go must neither hide nor repeat the others.
                    m.shelf.remove_behind(&seen[i]);
                    m.shelf.create_behind(&format!("new-{i}"));
                }
            }
            seen.retain(|name| name.starts_with("name-"));
            seen
        };
        let all = listed(false);
        assert_eq!(all.len(), NAMES);
        let mut sorted = all.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), NAMES);
        assert_eq!(listed(true), all);
        // A listing with attributes counts lookups, and the kernel gives them back.
        for entry in fs::read_dir(m.path("")).unwrap() {
            drop(entry.unwrap().metadata());
        }
        assert!(m.shelf.take_trace().iter().any(|op| op == "readdirplus"));
        seek_and_tell(&m);
    });
}

/// `seekdir` to an offset from `telldir` leads back to the same name.
fn seek_and_tell(m: &Mounted) {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(m.path("").as_os_str().as_bytes()).unwrap();
    // SAFETY: the stream is checked, used by this thread alone, and closed at the end; names are copied
    // before the next call.
    unsafe {
        let stream = libc::opendir(path.as_ptr());
        assert!(!stream.is_null());
        let next = || {
            let entry = libc::readdir(stream);
            assert!(!entry.is_null());
            std::ffi::CStr::from_ptr((&raw const (*entry).d_name).cast()).to_owned()
        };
        let mut marks = Vec::new();
        for i in 0..5000 {
            let at = libc::telldir(stream);
            let name = next();
            if i % 500 == 3 {
                marks.push((at, name));
            }
        }
        for (at, name) in marks.iter().rev() {
            libc::seekdir(stream, *at);
            assert_eq!(next(), *name);
        }
        libc::closedir(stream);
    }
}

#[test]
fn slow_answers_do_not_hold_up_others() {
    const READERS: u32 = 16;
    if common::skipped("slow_answers_do_not_hold_up_others") {
        return;
    }
    let wait = Duration::from_millis(300);
    let manners = Manners { slow_read: Some(wait), ..Manners::new(Way::Direct) };
    let m = Mounted::with(manners, |options| options.threads = 1);
    for i in 0..READERS {
        fs::write(m.path(format!("f{i}")), "slow").unwrap();
    }
    let start = common::now();
    std::thread::scope(|scope| {
        for i in 0..READERS {
            let path = m.path(format!("f{i}"));
            scope.spawn(move || {
                let mut body = [0; 4];
                File::open(path).unwrap().read_exact(&mut body).unwrap();
                assert_eq!(&body, b"slow");
            });
        }
        common::nap(wait / 3);
        let quick = common::now();
        for i in 0..READERS {
            fs::write(m.path(format!("g{i}")), "quick").unwrap();
        }
        assert!(quick.elapsed() < wait, "{:?}", quick.elapsed());
    });
    let all = start.elapsed();
    assert!(all >= wait && all < wait * 3, "{all:?}");
}

#[test]
fn inodes_that_the_kernel_forgets_go_away() {
    each_way("inodes_that_the_kernel_forgets_go_away", |way| {
        let m = Mounted::new(Manners::new(way));
        for i in 0..200 {
            fs::write(m.path(format!("f{i}")), "x").unwrap();
            drop(fs::read(m.path(format!("f{i}"))).unwrap());
        }
        for i in 0..200 {
            fs::remove_file(m.path(format!("f{i}"))).unwrap();
        }
        common::within(Duration::from_secs(10), "forgetting", || m.shelf.inodes() == 1);
    });
}
