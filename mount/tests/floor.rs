//! The floor of the benchmark does its work, in the claimed number of round trips.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a failed `unwrap` or `expect` fails the test"
)]

mod common;
#[path = "../../benches/floor/mod.rs"]
mod floor;

use std::fs;
use std::io::{Read, Write};

use floor::Floor;

#[test]
fn the_floor_mirrors_a_directory() {
    if common::skipped("the_floor_mirrors_a_directory") {
        return;
    }
    for passthrough in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (store, point) = (dir.path().join("store"), dir.path().join("mnt"));
        fs::create_dir(&store).unwrap();
        fs::create_dir(&point).unwrap();
        fs::write(store.join("old"), vec![7; 100_000]).unwrap();
        let floor = Floor::mount(&store, &point, passthrough, 2).unwrap();
        let counted = |act: &mut dyn FnMut()| {
            let before = floor.requests();
            act();
            floor.requests() - before
        };
        fs::metadata(&point).unwrap();
        assert_eq!(fs::read(point.join("old")).unwrap(), vec![7; 100_000]);
        let plain = u64::from(!passthrough);

        let made = counted(&mut || {
            fs::File::create(point.join("new")).unwrap().write_all(&[1; 8192]).unwrap();
        });
        // lookup, create, flush; the first write ever also requests a missing attribute.
        assert!((3..=4).contains(&(made - plain)), "{made}");
        let made = counted(&mut || {
            fs::File::create(point.join("newer")).unwrap().write_all(&[1; 8192]).unwrap();
        });
        assert_eq!(made - plain, 3);
        let read = counted(&mut || {
            let mut body = [0; 9000];
            assert_eq!(fs::File::open(point.join("new")).unwrap().read(&mut body).unwrap(), 8192);
        });
        assert!((1..=1 + plain).contains(&read), "{read}");
        let known = counted(&mut || {
            assert!(!point.join("missing").exists());
            assert!(point.join("new").exists());
        });
        let again = counted(&mut || {
            assert!(!point.join("missing").exists());
            assert!(point.join("new").exists());
        });
        assert!(known >= 1 && again == 0, "{known} {again}");

        fs::rename(point.join("new"), point.join("newer")).unwrap();
        assert_eq!(fs::read(point.join("newer")).unwrap(), [1; 8192]);
        fs::write(point.join("newer"), "short").unwrap();
        assert_eq!(fs::read(store.join("newer")).unwrap(), b"short");
        fs::create_dir(point.join("dir")).unwrap();
        for i in 0..1000 {
            fs::write(store.join("dir").join(i.to_string()), "").unwrap();
        }
        let listed = fs::read_dir(point.join("dir")).unwrap();
        assert_eq!(
            listed.filter(|entry| entry.as_ref().unwrap().metadata().unwrap().is_file()).count(),
            1000
        );
        fs::remove_file(point.join("newer")).unwrap();
        assert!(!store.join("newer").exists());
    }
}
