//! Every operation once, on real mounts, for each kind of I/O.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a failed `unwrap` or `expect` fails the test"
)]

mod common;

use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{
    FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use common::shelf::Manners;
use common::{Mounted, each_way};

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn last_errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

#[test]
fn bytes_go_around() {
    each_way("bytes_go_around", |way| {
        let m = Mounted::new(Manners::new(way));
        let path = m.path("file");
        let body: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 % 251) as u8).collect();
        fs::write(&path, &body).unwrap();
        assert_eq!(fs::read(&path).unwrap(), body);
        assert_eq!(fs::metadata(&path).unwrap().len(), body.len() as u64);

        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"hello", 1_000_000).unwrap();
        let mut word = [0; 5];
        file.read_exact_at(&mut word, 1_000_000).unwrap();
        assert_eq!(&word, b"hello");
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        file.set_len(10).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 10);
        file.set_len(5000).unwrap();
        let mut tail = [1; 100];
        file.read_exact_at(&mut tail, 4900).unwrap();
        assert_eq!(tail, [0; 100]);
        drop(file);

        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"end").unwrap();
        assert_eq!(&fs::read(&path).unwrap()[5000..], b"end");
        OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        let twice = OpenOptions::new().write(true).create_new(true).open(&path);
        assert_eq!(twice.unwrap_err().raw_os_error(), Some(libc::EEXIST));
    });
}

#[test]
fn a_removed_file_lives_while_open() {
    each_way("a_removed_file_lives_while_open", |way| {
        let m = Mounted::new(Manners::new(way));
        let path = m.path("file");
        fs::write(&path, "still here").unwrap();
        let mut file = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(!path.exists());
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        let mut body = String::new();
        file.read_to_string(&mut body).unwrap();
        assert_eq!(body, "still here");
        // The directory shows no replacement for it.
        assert_eq!(fs::read_dir(m.path("")).unwrap().count(), 0);
    });
}

#[test]
fn directories_and_renames() {
    each_way("directories_and_renames", |way| {
        let m = Mounted::new(Manners::new(way));
        let (a, b) = (m.path("a"), m.path("b"));
        fs::create_dir(&a).unwrap();
        fs::write(a.join("x"), "1").unwrap();
        fs::create_dir(&b).unwrap();
        assert_eq!(fs::metadata(m.path("")).unwrap().nlink(), 4);
        fs::write(b.join("y"), "2").unwrap();
        // A directory that is not empty is ENOTEMPTY for all three.
        for refused in [fs::rename(&a, &b), fs::remove_dir(&b)] {
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));
        }
        fs::rename(a.join("x"), b.join("y")).unwrap();
        assert_eq!(fs::read(b.join("y")).unwrap(), b"1");
        fs::rename(&b, &a).unwrap();
        assert_eq!(fs::read(a.join("y")).unwrap(), b"1");
        assert!(!b.exists());

        // A reader of the replaced file keeps its bytes.
        fs::write(m.path("old"), "old").unwrap();
        fs::write(m.path("new"), "new").unwrap();
        let mut reader = File::open(m.path("old")).unwrap();
        fs::rename(m.path("new"), m.path("old")).unwrap();
        let mut body = String::new();
        reader.read_to_string(&mut body).unwrap();
        assert_eq!(
            (body.as_str(), fs::read_to_string(m.path("old")).unwrap().as_str()),
            ("old", "new")
        );
    });
}

#[test]
fn rename_flags() {
    each_way("rename_flags", |way| {
        let m = Mounted::new(Manners::new(way));
        fs::write(m.path("a"), "a").unwrap();
        fs::write(m.path("b"), "b").unwrap();
        let rename = |from: &str, to: &str, flags: u32| {
            let (from, to) = (c_path(&m.path(from)), c_path(&m.path(to)));
            // SAFETY: two NUL-terminated paths that outlive the call.
            match unsafe {
                libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags)
            } {
                0 => Ok(()),
                _ => Err(last_errno().unwrap()),
            }
        };
        assert_eq!(rename("a", "b", libc::RENAME_NOREPLACE), Err(libc::EEXIST));
        assert_eq!(rename("a", "b", libc::RENAME_EXCHANGE), Ok(()));
        assert_eq!(
            (fs::read(m.path("a")).unwrap(), fs::read(m.path("b")).unwrap()),
            (b"b".to_vec(), b"a".to_vec())
        );
        assert_eq!(rename("a", "c", libc::RENAME_NOREPLACE), Ok(()));
        assert_eq!(rename("b", "d", libc::RENAME_EXCHANGE), Err(libc::ENOENT));
        assert_eq!(rename("b", "d", libc::RENAME_WHITEOUT), Err(libc::EINVAL));
        assert_eq!(rename("b", "d", 1 << 10), Err(libc::EINVAL));
    });
}

#[test]
fn links_and_other_kinds() {
    each_way("links_and_other_kinds", |way| {
        let m = Mounted::new(Manners::new(way));
        fs::write(m.path("file"), "body").unwrap();
        fs::hard_link(m.path("file"), m.path("twin")).unwrap();
        assert_eq!(fs::metadata(m.path("file")).unwrap().nlink(), 2);
        assert_eq!(
            fs::metadata(m.path("file")).unwrap().ino(),
            fs::metadata(m.path("twin")).unwrap().ino()
        );
        symlink("no where", m.path("link")).unwrap();
        assert_eq!(fs::read_link(m.path("link")).unwrap(), Path::new("no where"));
        let followed =
            OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(m.path("link"));
        assert_eq!(followed.unwrap_err().raw_os_error(), Some(libc::ELOOP));
        let fifo = c_path(&m.path("fifo"));
        // SAFETY: a NUL-terminated path that outlives the call.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        assert!(fs::metadata(m.path("fifo")).unwrap().file_type().is_fifo());
        let listener = std::os::unix::net::UnixListener::bind(m.path("socket")).unwrap();
        assert!(fs::metadata(m.path("socket")).unwrap().file_type().is_socket());
        drop(listener);
        let device = c_path(&m.path("null"));
        // SAFETY: a NUL-terminated path that outlives the call.
        let made =
            unsafe { libc::mknod(device.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 3)) };
        assert_eq!(made, 0);
        assert_eq!(fs::metadata(m.path("null")).unwrap().rdev(), libc::makedev(1, 3));
        // nodev
        assert_eq!(File::open(m.path("null")).unwrap_err().raw_os_error(), Some(libc::EACCES));
    });
}

#[test]
fn modes_owners_and_umask() {
    each_way("modes_owners_and_umask", |way| {
        let m = Mounted::new(Manners::new(way));
        // The umask is one per process, so it is only read here.
        // SAFETY: plain numbers; other tests make no files with modes that it would change.
        let umask = unsafe {
            let umask = libc::umask(0o027);
            libc::umask(umask);
            umask
        };
        OpenOptions::new().write(true).create_new(true).mode(0o777).open(m.path("f")).unwrap();
        assert_eq!(fs::metadata(m.path("f")).unwrap().mode() & 0o7777, 0o777 & !umask);
        fs::set_permissions(m.path("f"), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(fs::metadata(m.path("f")).unwrap().mode(), libc::S_IFREG | 0o640);
        std::os::unix::fs::chown(m.path("f"), Some(12), Some(34)).unwrap();
        let meta = fs::metadata(m.path("f")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (12, 34));
    });
}

#[test]
fn set_id_bits_go_when_others_write() {
    each_way("set_id_bits_go_when_others_write", |way| {
        let m = Mounted::new(Manners::new(way));
        let path = m.path("f");
        fs::set_permissions(m.path(""), fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(&path, "x").unwrap();
        let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
        let set = || fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        set();
        assert_eq!(mode(), 0o6777);
        std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
        assert_eq!(mode(), 0o777);
        set();
        let as_other = |script: &str| {
            use std::os::unix::process::CommandExt;
            let done = std::process::Command::new("/bin/sh")
                .args(["-c", script, "sh"])
                .arg(&path)
                .uid(1000)
                .gid(1000)
                .status()
                .unwrap();
            assert!(done.success());
        };
        // The path to the mount must be accessible to the other user as well.
        fs::set_permissions(m.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        as_other("printf y >> \"$1\"");
        assert_eq!(mode(), 0o777, "after a write");
        set();
        as_other(": > \"$1\"");
        assert_eq!(mode(), 0o777, "after a truncating open");
    });
}

#[test]
fn times_before_and_after_the_epoch() {
    each_way("times_before_and_after_the_epoch", |way| {
        let m = Mounted::new(Manners::new(way));
        let path = m.path("f");
        fs::write(&path, "x").unwrap();
        let c = c_path(&path);
        for (secs, nanos) in [
            (1_700_000_000, 123_456_789),
            (0, 0),
            (-1, 0),
            (-1, 999_999_999),
            (-86_400 * 365, 5),
            (i64::MIN, 0),
            (i64::MAX, 0),
        ] {
            let times = [
                libc::timespec { tv_sec: 7, tv_nsec: 8 },
                libc::timespec { tv_sec: secs, tv_nsec: nanos },
            ];
            // SAFETY: a NUL-terminated path and two times that outlive the call.
            let set = unsafe { libc::utimensat(libc::AT_FDCWD, c.as_ptr(), times.as_ptr(), 0) };
            assert_eq!(set, 0);
            let meta = fs::metadata(&path).unwrap();
            assert_eq!((meta.mtime(), meta.mtime_nsec()), (secs, nanos));
            assert_eq!((meta.atime(), meta.atime_nsec()), (7, 8));
        }
        let omit = libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
        let now = libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW };
        // SAFETY: as above.
        let set = unsafe { libc::utimensat(libc::AT_FDCWD, c.as_ptr(), [omit, now].as_ptr(), 0) };
        assert_eq!(set, 0);
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(meta.atime(), 7);
        assert!(meta.modified().unwrap() > UNIX_EPOCH + Duration::from_secs(1_600_000_000));
    });
}

#[test]
fn extended_attributes() {
    each_way("extended_attributes", |way| {
        let m = Mounted::new(Manners::new(way));
        let path = m.path("f");
        fs::write(&path, "x").unwrap();
        let (c, name) = (c_path(&path), CString::new("user.k").unwrap());
        let set = |value: &[u8], flags: i32| {
            // SAFETY: strings and a buffer of the stated size that outlive the call.
            unsafe {
                libc::setxattr(c.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags)
            }
        };
        let get = |room: usize| {
            let mut buffer = vec![0u8; room];
            // SAFETY: as above.
            let got = unsafe {
                libc::getxattr(c.as_ptr(), name.as_ptr(), buffer.as_mut_ptr().cast(), room)
            };
            if got < 0 { Err(last_errno().unwrap()) } else { Ok((got, buffer)) }
        };
        assert_eq!(get(10), Err(libc::ENODATA));
        assert_eq!((set(b"v", libc::XATTR_REPLACE), last_errno()), (-1, Some(libc::ENODATA)));
        assert_eq!(set(b"value", libc::XATTR_CREATE), 0);
        assert_eq!((set(b"v", libc::XATTR_CREATE), last_errno()), (-1, Some(libc::EEXIST)));
        assert_eq!(get(0).unwrap().0, 5);
        assert_eq!(get(4), Err(libc::ERANGE));
        assert_eq!(get(5).unwrap(), (5, b"value".to_vec()));
        assert_eq!(set(&vec![7; 60_000], 0), 0);
        assert_eq!(get(65_536).unwrap().0, 60_000);
        let mut names = [0u8; 64];
        // SAFETY: as above.
        unsafe {
            assert_eq!(libc::listxattr(c.as_ptr(), std::ptr::null_mut(), 0), 7);
            assert_eq!(
                (libc::listxattr(c.as_ptr(), names.as_mut_ptr().cast(), 6), last_errno()),
                (-1, Some(libc::ERANGE))
            );
            assert_eq!(libc::listxattr(c.as_ptr(), names.as_mut_ptr().cast(), 64), 7);
            assert_eq!(&names[..7], b"user.k\0");
            assert_eq!(libc::removexattr(c.as_ptr(), name.as_ptr()), 0);
            assert_eq!(libc::removexattr(c.as_ptr(), name.as_ptr()), -1);
        }
        assert_eq!(last_errno(), Some(libc::ENODATA));
    });
}

#[test]
fn holes_space_and_seeking() {
    each_way("holes_space_and_seeking", |way| {
        let m = Mounted::new(Manners::new(way));
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(m.path("f"))
            .unwrap();
        file.write_all_at(b"data", 1 << 20).unwrap();
        file.sync_all().unwrap();
        let descriptor = file.as_raw_fd();
        // SAFETY: plain numbers and an open descriptor.
        unsafe {
            assert_eq!(libc::lseek(descriptor, 0, libc::SEEK_DATA), 1 << 20);
            assert_eq!(libc::lseek(descriptor, 0, libc::SEEK_HOLE), 0);
            assert_eq!(
                (libc::lseek(descriptor, 1 << 21, libc::SEEK_DATA), last_errno()),
                (-1, Some(libc::ENXIO))
            );
            assert_eq!(libc::fallocate(descriptor, 0, 0, 1 << 21), 0);
        }
        assert_eq!(file.metadata().unwrap().len(), 1 << 21);
        assert!(file.metadata().unwrap().blocks() * 512 >= 1 << 21);
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: as above.
        assert_eq!(unsafe { libc::fallocate(descriptor, punch, 1 << 20, 4096) }, 0);
        let mut word = [1; 4];
        file.read_exact_at(&mut word, 1 << 20).unwrap();
        assert_eq!(word, [0; 4]);
        assert_eq!(file.seek(SeekFrom::End(-4)).unwrap(), (1 << 21) - 4);
    });
}

#[test]
fn copies_within_the_kernel_fall_back() {
    each_way("copies_within_the_kernel_fall_back", |way| {
        let m = Mounted::new(Manners::new(way));
        let body = vec![42u8; 300_000];
        fs::write(m.path("a"), &body).unwrap();
        for round in 0..2 {
            let from = File::open(m.path("a")).unwrap();
            let to = File::create(m.path(format!("b{round}"))).unwrap();
            let mut copied = 0;
            while copied < body.len() {
                // SAFETY: two open descriptors; the offsets are those of the descriptors.
                let count = unsafe {
                    libc::copy_file_range(
                        from.as_raw_fd(),
                        std::ptr::null_mut(),
                        to.as_raw_fd(),
                        std::ptr::null_mut(),
                        body.len(),
                        0,
                    )
                };
                assert!(count > 0, "{:?}", last_errno());
                copied += count as usize;
            }
            assert_eq!(fs::read(m.path(format!("b{round}"))).unwrap(), body);
        }
        fs::copy(m.path("a"), m.path("c")).unwrap();
        assert_eq!(fs::read(m.path("c")).unwrap(), body);
    });
}

#[test]
fn unnamed_files_and_terminal_questions_are_declined() {
    each_way("unnamed_files_and_terminal_questions_are_declined", |way| {
        let m = Mounted::new(Manners::new(way));
        for _ in 0..2 {
            let unnamed =
                OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(m.path(""));
            assert_eq!(unnamed.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
        }
        // The fallback of programs.
        let mut file = tempfile::tempfile_in(m.path("")).unwrap();
        file.write_all(b"x").unwrap();
        // SAFETY: an open descriptor.
        let terminal = unsafe { libc::isatty(file.as_raw_fd()) };
        assert_eq!((terminal, last_errno()), (0, Some(libc::ENOTTY)));
    });
}

#[test]
fn locks_are_held_by_the_kernel() {
    each_way("locks_are_held_by_the_kernel", |way| {
        let m = Mounted::new(Manners::new(way));
        let one = File::create(m.path("lock")).unwrap();
        let two = File::open(m.path("lock")).unwrap();
        one.lock().unwrap();
        assert!(two.try_lock().is_err());
        one.unlock().unwrap();
        two.try_lock().unwrap();
        assert!(m.shelf.take_trace().iter().all(|op| !op.contains("lk")));
    });
}

#[test]
fn sizes_of_the_file_system() {
    each_way("sizes_of_the_file_system", |way| {
        let m = Mounted::new(Manners::new(way));
        let path = c_path(&m.path(""));
        // SAFETY: all-zero is a valid value of this plain structure.
        let mut sizes: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: a NUL-terminated path and a structure that outlive the call.
        assert_eq!(unsafe { libc::statvfs(path.as_ptr(), &raw mut sizes) }, 0);
        assert_eq!((sizes.f_blocks, sizes.f_bfree, sizes.f_bavail), (1000, 600, 500));
        assert_eq!((sizes.f_files, sizes.f_ffree, sizes.f_namemax), (50, 40, 255));
        assert_eq!((sizes.f_bsize, sizes.f_frsize), (4096, 4096));
    });
}

#[test]
fn a_read_only_mount_refuses_writers() {
    each_way("a_read_only_mount_refuses_writers", |way| {
        let m = Mounted::with(Manners::new(way), |options| options.read_only = true);
        let refused = File::create(m.path("f")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        m.shelf.create_behind("there");
        assert_eq!(fs::read(m.path("there")).unwrap(), b"");
    });
}

#[test]
fn names_of_all_kinds() {
    each_way("names_of_all_kinds", |way| {
        let m = Mounted::new(Manners::new(way));
        let long = "n".repeat(255);
        let names: [&[u8]; 6] = [
            long.as_bytes(),
            b"\xff\xfe not utf8",
            b"line\nend",
            b"tab\tand space ",
            b"\\040",
            "\u{1f525}".as_bytes(),
        ];
        for name in names {
            fs::write(m.path(OsStr::from_bytes(name)), name).unwrap();
        }
        let mut listed: Vec<_> =
            fs::read_dir(m.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
        listed.sort();
        let mut wanted: Vec<_> =
            names.iter().map(|name| OsStr::from_bytes(name).to_owned()).collect();
        wanted.sort();
        assert_eq!(listed, wanted);
        for name in names {
            assert_eq!(fs::read(m.path(OsStr::from_bytes(name))).unwrap(), name);
        }
        let too_long = fs::write(m.path("n".repeat(256)), "");
        assert_eq!(too_long.unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
        let mut deep = m.path("");
        for level in 0..100 {
            deep.push(format!("level {level}"));
            fs::create_dir(&deep).unwrap();
        }
        fs::write(deep.join("bottom"), "b").unwrap();
        assert_eq!(fs::read(deep.join("bottom")).unwrap(), b"b");
    });
}
