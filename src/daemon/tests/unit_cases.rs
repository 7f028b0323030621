//! Units (P6) in rare orders of events, which no client produces on purpose and no reader may
//! notice.

use hearthfs_mount::Errno;

use super::kernel::Kernel;
use super::node::{REPLACE, get, in_both_modes, node, put, runtime};
use super::programs::Program;
use super::units::{make_dirs, missing, names, until};

const KEY: &str = "triton/KEY";
const MARKER: &str = "triton/KEY/__grp__.json";

#[test]
fn p6_units_are_not_completed_by_a_marker_that_is_still_written() {
    in_both_modes(|kernel| {
        let (writer, reader) = (Program::start(), Program::start());
        make_dirs(kernel, &writer, KEY);
        put(kernel, &writer, "triton/KEY/a", b"old");
        put(kernel, &writer, MARKER, b"old");
        put(kernel, &writer, "triton/KEY/a", b"new");
        make_dirs(kernel, &writer, "triton/KEY/tmp.pid_1");
        kernel.open(&writer.caller(), "triton/KEY/tmp.pid_1/x", 1, REPLACE, true).unwrap();
        kernel.write(1, 0, b"new").unwrap();
        kernel.rename(&writer.caller(), "triton/KEY/tmp.pid_1/x", MARKER).unwrap();
        for name in [MARKER, "triton/KEY/a"] {
            assert_eq!(
                get(kernel, &reader, name),
                b"old",
                "{name}: the marker is still being written"
            );
        }
        kernel.close(&writer.caller(), 1).unwrap();
        for name in [MARKER, "triton/KEY/a"] {
            assert_eq!(get(kernel, &reader, name), b"new", "{name}");
        }
    });
}

#[test]
fn p6_units_with_a_lost_member_are_a_miss() {
    for passthrough in [false, true] {
        let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
        let kernel = &mut Kernel::start(&runtime, node(&dir), passthrough);
        let (writer, reader) = (Program::start(), Program::start());
        make_dirs(kernel, &writer, KEY);
        for name in ["triton/KEY/a", "triton/KEY/b", MARKER] {
            put(kernel, &writer, name, name.as_bytes());
        }
        assert!(!missing(kernel, &reader, MARKER));
        let lost = crate::digest::Digest::of(b"triton/KEY/b");
        kernel.rooms().blobs.suspect(&lost);
        assert_eq!(remove_blob(dir.path(), b"triton/KEY/b"), 1);
        assert!(missing(kernel, &Program::start(), "triton/KEY/b"), "its bytes are lost");
        for _ in 0..2 {
            assert!(missing(kernel, &Program::start(), MARKER), "an incomplete unit is hidden");
        }
        // The unit is written again, as after any miss.
        for name in ["triton/KEY/a", "triton/KEY/b", MARKER] {
            put(kernel, &writer, name, b"anew");
        }
        assert_eq!(get(kernel, &Program::start(), MARKER), b"anew");
        assert_eq!(get(kernel, &Program::start(), "triton/KEY/b"), b"anew");
    }
}

#[test]
fn p6_units_are_read_again_once_they_are_rewritten_without_what_was_lost() {
    for passthrough in [false, true] {
        let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
        let kernel = &mut Kernel::start(&runtime, node(&dir), passthrough);
        let (first, second) = (Program::start(), Program::start());
        make_dirs(kernel, &first, KEY);
        for name in ["triton/KEY/a", "triton/KEY/b", MARKER] {
            put(kernel, &first, name, name.as_bytes());
        }
        kernel.rooms().blobs.suspect(&crate::digest::Digest::of(b"triton/KEY/b"));
        assert_eq!(remove_blob(dir.path(), b"triton/KEY/b"), 1);
        assert!(missing(kernel, &Program::start(), "triton/KEY/b"), "its bytes are lost");
        assert!(missing(kernel, &Program::start(), MARKER), "an incomplete unit is hidden");
        for name in ["triton/KEY/a", MARKER] {
            put(kernel, &second, name, b"anew");
        }
        for name in ["triton/KEY/a", MARKER] {
            assert_eq!(get(kernel, &Program::start(), name), b"anew", "{name}");
        }
        assert_eq!(names(kernel, &Program::start(), KEY), ["__grp__.json", "a"]);
    }
}

/// This is what happens when a program replaces a directory of artifacts in a unit that another one
/// has published meanwhile.
#[test]
fn p6_units_from_which_a_member_is_removed_are_a_miss() {
    in_both_modes(|kernel| {
        let (first, second, reader) = (Program::start(), Program::start(), Program::start());
        make_dirs(kernel, &first, KEY);
        for name in ["triton/KEY/a", "triton/KEY/b", MARKER] {
            put(kernel, &first, name, b"first");
        }
        assert_eq!(get(kernel, &reader, MARKER), b"first");
        kernel.unlink(&second.caller(), "triton/KEY/b").unwrap();
        assert!(missing(kernel, &Program::start(), MARKER), "an incomplete unit is hidden");
        assert_eq!(get(kernel, &reader, "triton/KEY/b"), b"first", "the reader keeps its version");
        for name in ["triton/KEY/b", "triton/KEY/a", MARKER] {
            put(kernel, &second, name, b"second");
        }
        for name in [MARKER, "triton/KEY/a", "triton/KEY/b"] {
            assert_eq!(get(kernel, &Program::start(), name), b"second", "{name}");
        }
        // A version may have fewer members than the one before.
        let third = Program::start();
        put(kernel, &third, MARKER, b"third");
        kernel.unlink(&third.caller(), "triton/KEY/b").unwrap();
        put(kernel, &third, MARKER, b"third again");
        assert_eq!(get(kernel, &Program::start(), MARKER), b"third again");
        assert!(missing(kernel, &Program::start(), "triton/KEY/b"));
    });
}

/// Readers keep the members in a directory of a unit when another process replaces that directory.
#[test]
fn p6_units_keep_directories_for_their_readers() {
    in_both_modes(|kernel| {
        let (writer, reader, other) = (Program::start(), Program::start(), Program::start());
        let part = "vllm/torch_compile_cache/hash/rank_0_0/backbone";
        let at = |name: &str| format!("{part}/{name}");
        make_dirs(kernel, &writer, &at("unpacked/deep"));
        for name in ["a", "unpacked/b", "unpacked/deep/c", "vllm_compile_cache.py"] {
            put(kernel, &writer, &at(name), b"1");
        }
        assert_eq!(get(kernel, &reader, &at("vllm_compile_cache.py")), b"1");
        for name in ["unpacked/deep/c", "unpacked/b"] {
            kernel.unlink(&other.caller(), &at(name)).unwrap();
        }
        for name in ["unpacked/deep", "unpacked"] {
            kernel.rmdir(&other.caller(), &at(name)).unwrap();
        }
        assert_eq!(kernel.stat(&other.caller(), &at("unpacked")).unwrap_err(), Errno::ENOENT);
        for name in ["unpacked/deep/c", "unpacked/b", "a"] {
            assert_eq!(get(kernel, &reader, &at(name)), b"1", "{name}");
        }
        assert_eq!(kernel.stat(&other.caller(), &at("unpacked")).unwrap_err(), Errno::ENOENT);
        make_dirs(kernel, &other, &at("unpacked"));
        for name in ["unpacked/b", "a", "vllm_compile_cache.py"] {
            put(kernel, &other, &at(name), b"2");
        }
        for name in ["vllm_compile_cache.py", "unpacked/b", "a"] {
            assert_eq!(get(kernel, &reader, &at(name)), b"2", "{name}");
        }
        assert!(missing(kernel, &reader, &at("unpacked/deep/c")));
    });
}

/// Removes the files below a directory that contain these bytes. Returns how many there were.
fn remove_blob(dir: &std::path::Path, bytes: &[u8]) -> usize {
    let mut removed = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            removed += remove_blob(&path, bytes);
        } else if std::fs::read(&path).is_ok_and(|has| has == bytes) {
            std::fs::remove_file(&path).unwrap();
            removed += 1;
        }
    }
    removed
}

#[test]
fn p6_units_of_several_writers_are_one_also_for_one_that_has_read() {
    in_both_modes(|kernel| {
        let (parent, child) = (Program::start(), Program::start());
        let mut killed = Program::start();
        let module = "neuron/neuronxcc-1/MODULE_1+2";
        make_dirs(kernel, &parent, module);
        let at = |name: &str| format!("{module}/{name}");
        put(kernel, &parent, &at("model.done"), b"old");
        // The child has an edition of its own, with the version that it reads.
        assert_eq!(get(kernel, &child, &at("model.done")), b"old");
        put(kernel, &parent, &at("model.hlo"), b"hlo");
        put(kernel, &child, &at("model.neff"), b"neff");
        put(kernel, &killed, &at("model.log"), b"log");
        // The others go on, even after the time in which the daemon learns of the death.
        killed.kill();
        kernel.pass(std::time::Duration::from_secs(1));
        put(kernel, &child, &at("model.done"), b"new");
        let reader = Program::start();
        for (name, bytes) in [
            ("model.done", "new"),
            ("model.hlo", "hlo"),
            ("model.neff", "neff"),
            ("model.log", "log"),
        ] {
            assert_eq!(get(kernel, &reader, &at(name)), bytes.as_bytes(), "{name}");
        }
    });
}

/// A draft that several processes wrote is the version that each of them reads, whatever the others
/// do after that.
#[test]
fn p6_units_of_several_writers_stay_with_those_that_read_them() {
    in_both_modes(|kernel| {
        let [opens, takes, reads, other] = std::array::from_fn(|_| Program::start());
        let module = "neuron/neuronxcc-1/MODULE_1+2";
        make_dirs(kernel, &opens, module);
        let at = |name: &str| format!("{module}/{name}");
        put(kernel, &opens, &at("model.hlo"), b"hlo 1");
        put(kernel, &takes, &at("model.log"), b"log 1");
        put(kernel, &reads, &at("model.neff"), b"neff 1");
        put(kernel, &opens, &at("model.done"), b"done 1");
        for program in [&opens, &takes, &reads] {
            assert_eq!(get(kernel, program, &at("model.done")), b"done 1");
        }
        put(kernel, &other, &at("model.neff"), b"neff 2");
        put(kernel, &other, &at("model.done"), b"done 2");
        assert_eq!(
            get(kernel, &opens, &at("model.done")),
            b"done 2",
            "the entry point is opened again"
        );
        assert_eq!(get(kernel, &opens, &at("model.neff")), b"neff 2");
        assert_eq!(
            get(kernel, &reads, &at("model.neff")),
            b"neff 1",
            "the reader keeps its version"
        );
        kernel.unlink(&takes.caller(), &at("model.log")).unwrap();
        assert!(
            missing(kernel, &Program::start(), &at("model.log")),
            "the published file is removed"
        );
        assert_eq!(get(kernel, &reads, &at("model.log")), b"log 1", "the reader keeps its version");
        // The edition ends with the last process that leaves it.
        kernel.unlink(&reads.caller(), &at("model.hlo")).unwrap();
        assert!(missing(kernel, &Program::start(), &at("model.hlo")));
        assert!(missing(kernel, &reads, &at("model.log")));
    });
}

#[test]
fn p6_units_leave_what_came_in_the_place_of_a_member() {
    in_both_modes(|kernel| {
        let (first, other) = (Program::start(), Program::start());
        make_dirs(kernel, &first, KEY);
        let published = |kernel: &mut Kernel<'_>, bytes: &[u8]| {
            until(kernel, "files without recent writes", |kernel| {
                let program = Program::start();
                !missing(kernel, &program, "triton/KEY/a")
                    && get(kernel, &program, "triton/KEY/a") == bytes
            });
        };
        put(kernel, &first, "triton/KEY/a", b"first");
        published(kernel, b"first");
        let writer = Program::start();
        kernel.open(&writer.caller(), "triton/KEY/b", 1, REPLACE, true).unwrap();
        kernel.unlink(&writer.caller(), "triton/KEY/a").unwrap();
        put(kernel, &other, "triton/KEY/a", b"other");
        published(kernel, b"other");
        kernel.close(&writer.caller(), 1).unwrap();
        put(kernel, &writer, MARKER, b"{}");
        assert_eq!(get(kernel, &Program::start(), "triton/KEY/a"), b"other");
        assert_eq!(get(kernel, &Program::start(), MARKER), b"{}");
    });
}

#[test]
fn p6_units_with_directories_in_them() {
    in_both_modes(|kernel| {
        let (writer, other) = (Program::start(), Program::start());
        let part = "vllm/torch_compile_cache/hash/rank_0_0/backbone";
        let at = |name: &str| format!("{part}/{name}");
        make_dirs(kernel, &writer, &at("sub"));
        make_dirs(kernel, &writer, &at("empty"));
        put(kernel, &writer, &at("sub/a"), b"1");
        put(kernel, &writer, &at("vllm_compile_cache.py"), b"1");
        put(kernel, &writer, &at("b"), b"2");
        assert_eq!(names(kernel, &writer, &at("sub")), ["a"], "no name in it was looked up before");
        assert_eq!(names(kernel, &writer, part), ["b", "empty", "sub", "vllm_compile_cache.py"]);
        put(kernel, &writer, &at("empty/c"), b"3");
        assert_eq!(kernel.rmdir(&other.caller(), &at("empty")), Err(Errno::ENOTEMPTY));
        put(kernel, &writer, &at("vllm_compile_cache.py"), b"2");
        assert_eq!(names(kernel, &other, &at("empty")), ["c"]);
        assert_eq!(get(kernel, &Program::start(), &at("sub/a")), b"1");
    });
}

/// A process that pauses for longer than its draft is kept goes on with the same version. If another one has
/// come meanwhile, that one stays, until the process has read it.
#[test]
fn p6_units_of_a_writer_that_pauses_have_one_version() {
    const NAMES: [&str; 3] = ["a", "b", "__grp__.json"];
    in_both_modes(|kernel| {
        let (slow, other) = (Program::start(), Program::start());
        let at = |key: &str, name: &str| format!("triton/{key}/{name}");
        let puts = |kernel: &mut Kernel<'_>, program: &Program, key: &str, bytes: &str| {
            for name in NAMES {
                put(kernel, program, &at(key, name), bytes.as_bytes());
            }
        };
        let shows = |kernel: &mut Kernel<'_>, key: &str, bytes: &str| {
            let reader = Program::start();
            for name in NAMES.iter().rev() {
                let found = get(kernel, &reader, &at(key, name));
                assert_eq!(String::from_utf8_lossy(&found), bytes, "{key}/{name}");
            }
        };
        for key in ["alone", "early", "late"] {
            make_dirs(kernel, &slow, &format!("triton/{key}"));
            put(kernel, &slow, &at(key, "a"), b"ours");
        }
        puts(kernel, &other, "early", "theirs");
        kernel.pass(std::time::Duration::from_secs(12));
        puts(kernel, &other, "late", "theirs");
        for (key, stays) in [("alone", "ours"), ("early", "theirs"), ("late", "theirs")] {
            for name in &NAMES[1..] {
                put(kernel, &slow, &at(key, name), b"ours");
            }
            shows(kernel, key, stays);
            assert_eq!(get(kernel, &slow, &at(key, "__grp__.json")), stays.as_bytes(), "{key}");
            puts(kernel, &slow, key, "new");
            shows(kernel, key, "new");
        }
    });
}
