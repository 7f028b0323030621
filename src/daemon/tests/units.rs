//! Units (P6): what each process sees of files that only make sense together.

use std::time::Duration;

use hearthfs_mount::Errno;

use super::kernel::Kernel;
use super::node::{READ, REPLACE, get, in_both_modes, node, put, runtime};
use super::programs::Program;

const KEY: &str = "triton/KEY";

/// Makes a directory with those above it.
pub(super) fn make_dirs(kernel: &mut Kernel<'_>, program: &Program, path: &str) {
    for (at, _) in path.match_indices('/').chain([(path.len(), "")]) {
        match kernel.mkdir(&program.caller(), &path[..at]) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => panic!("{path}: {errno:?}"),
        }
    }
}

/// Puts a file like Triton and numba do: as a temporary that is renamed.
pub(super) fn put_by_rename(kernel: &mut Kernel<'_>, program: &Program, path: &str, bytes: &[u8]) {
    let (dir, name) = path.rsplit_once('/').unwrap();
    let temporary = if dir.starts_with("triton") {
        make_dirs(kernel, program, &format!("{dir}/tmp.pid_1"));
        format!("{dir}/tmp.pid_1/{name}")
    } else {
        format!("{dir}/{name}.tmp.0123456789abcdef")
    };
    put(kernel, program, &temporary, bytes);
    kernel.rename(&program.caller(), &temporary, path).unwrap();
    if dir.starts_with("triton") {
        kernel.rmdir(&program.caller(), &format!("{dir}/tmp.pid_1")).unwrap();
        assert_eq!(kernel.rmdir(&program.caller(), dir), Err(Errno::ENOTEMPTY));
    }
}

pub(super) fn missing(kernel: &mut Kernel<'_>, program: &Program, path: &str) -> bool {
    match kernel.open(&program.caller(), path, 92, READ, false) {
        Ok(()) => {
            kernel.close(&program.caller(), 92).unwrap();
            false
        }
        Err(errno) => {
            assert_eq!(errno, Errno::ENOENT, "{path}");
            true
        }
    }
}

pub(super) fn names(kernel: &mut Kernel<'_>, program: &Program, dir: &str) -> Vec<String> {
    let mut names = kernel.list(&program.caller(), dir).unwrap();
    names.sort();
    names
}

/// Waits until the node has done its periodic work.
pub(super) fn until(
    kernel: &mut Kernel<'_>,
    what: &str,
    mut done: impl FnMut(&mut Kernel<'_>) -> bool,
) {
    for _ in 0..600 {
        if done(kernel) {
            return;
        }
        kernel.pass(Duration::from_millis(20));
    }
    panic!("{what}");
}

#[test]
fn p6_units_appear_whole_with_their_marker() {
    in_both_modes(|kernel| {
        let (writer, reader) = (Program::start(), Program::start());
        make_dirs(kernel, &writer, KEY);
        let members = ["x.ttir", "x.json", "x.cubin"];
        for name in members {
            let path = format!("{KEY}/{name}");
            assert!(missing(kernel, &reader, &path), "the kernel caches the miss");
            put_by_rename(kernel, &writer, &path, name.as_bytes());
            assert_eq!(
                get(kernel, &writer, &path),
                name.as_bytes(),
                "the writer sees its own file"
            );
            assert!(missing(kernel, &reader, &path), "{name} is shown before the unit is complete");
            assert_eq!(names(kernel, &reader, KEY), [] as [&str; 0]);
        }
        assert_eq!(names(kernel, &writer, KEY), ["x.cubin", "x.json", "x.ttir"]);
        put_by_rename(kernel, &writer, &format!("{KEY}/__grp__x.json"), b"{}");
        for program in [&reader, &writer] {
            assert_eq!(
                names(kernel, program, KEY),
                ["__grp__x.json", "x.cubin", "x.json", "x.ttir"]
            );
            for name in members {
                assert_eq!(get(kernel, program, &format!("{KEY}/{name}")), name.as_bytes());
            }
        }
        assert_eq!(names(kernel, &reader, ""), ["triton"], "no internal name is listed");
    });
}

#[test]
fn p6_units_written_in_place_appear_whole_too() {
    in_both_modes(|kernel| {
        let (writer, reader) = (Program::start(), Program::start());
        make_dirs(kernel, &writer, KEY);
        for round in [b"one", b"two"] {
            for name in ["a", "b"] {
                put(kernel, &writer, &format!("{KEY}/{name}"), round);
                assert_eq!(get(kernel, &writer, &format!("{KEY}/{name}")), round);
            }
            if round == b"two" {
                let seen =
                    (get(kernel, &reader, "triton/KEY/a"), get(kernel, &reader, "triton/KEY/b"));
                assert_eq!(seen, (b"one".to_vec(), b"one".to_vec()));
            }
            put(kernel, &writer, "triton/KEY/__grp__.json", round);
            // With the entry point the reader begins the new version.
            for name in ["__grp__.json", "a", "b"] {
                assert_eq!(get(kernel, &reader, &format!("{KEY}/{name}")), round, "{name}");
            }
        }
    });
}

#[test]
fn p6_units_of_two_writers_never_mix() {
    in_both_modes(|kernel| {
        let (one, other, reader) = (Program::start(), Program::start(), Program::start());
        make_dirs(kernel, &one, KEY);
        for name in ["a", "b"] {
            put_by_rename(kernel, &one, &format!("{KEY}/{name}"), b"one");
            put_by_rename(kernel, &other, &format!("{KEY}/{name}"), b"other");
        }
        put_by_rename(kernel, &other, "triton/KEY/__grp__.json", b"other");
        put_by_rename(kernel, &one, "triton/KEY/__grp__.json", b"one");
        // The version that was complete first stays. The other writer still sees its own.
        for name in ["a", "b", "__grp__.json"] {
            assert_eq!(get(kernel, &reader, &format!("{KEY}/{name}")), b"other");
            assert_eq!(get(kernel, &other, &format!("{KEY}/{name}")), b"other");
        }
        for name in ["a", "b"] {
            assert_eq!(get(kernel, &one, &format!("{KEY}/{name}")), b"one");
        }
        for name in ["__grp__.json", "a", "b"] {
            assert_eq!(
                get(kernel, &one, &format!("{KEY}/{name}")),
                b"other",
                "it has opened the entry point"
            );
        }
    });
}

#[test]
fn p6_units_keep_their_version_for_those_that_read_them() {
    in_both_modes(|kernel| {
        let (writer, reader, late) = (Program::start(), Program::start(), Program::start());
        make_dirs(kernel, &writer, "numba/d");
        let unit = |name: &str| format!("numba/d/m.f-1.py311.{name}");
        put_by_rename(kernel, &writer, &unit("nbi"), b"index 1");
        assert!(missing(kernel, &reader, &unit("nbi")), "an index without its data is hidden");
        put_by_rename(kernel, &writer, &unit("1.nbc"), b"data 1");
        assert_eq!(get(kernel, &reader, &unit("nbi")), b"index 1");
        put_by_rename(kernel, &writer, &unit("nbi"), b"index 2");
        put_by_rename(kernel, &writer, &unit("1.nbc"), b"data 2");
        assert_eq!(get(kernel, &reader, &unit("1.nbc")), b"data 1");
        assert_eq!(names(kernel, &reader, "numba/d").len(), 2);
        assert_eq!(get(kernel, &late, &unit("nbi")), b"index 2");
        assert_eq!(get(kernel, &late, &unit("1.nbc")), b"data 2");
        assert_eq!(
            get(kernel, &reader, &unit("nbi")),
            b"index 2",
            "the reader opens the entry point again"
        );
        assert_eq!(get(kernel, &reader, &unit("1.nbc")), b"data 2");
        assert_eq!(get(kernel, &writer, &unit("1.nbc")), b"data 2");
    });
}

#[test]
fn p6_units_of_numba_race() {
    in_both_modes(|kernel| {
        let (one, other, reader) = (Program::start(), Program::start(), Program::start());
        make_dirs(kernel, &one, "numba/d");
        let unit = |name: &str| format!("numba/d/m.f-1.py311.{name}");
        put_by_rename(kernel, &one, &unit("nbi"), b"float64");
        put_by_rename(kernel, &other, &unit("nbi"), b"int64");
        put_by_rename(kernel, &other, &unit("1.nbc"), b"int64");
        put_by_rename(kernel, &one, &unit("1.nbc"), b"float64");
        assert_eq!(get(kernel, &reader, &unit("nbi")), b"int64");
        assert_eq!(get(kernel, &reader, &unit("1.nbc")), b"int64");
        // The process reads the index again, adds to it, and gets no error.
        assert_eq!(get(kernel, &one, &unit("nbi")), b"int64");
        put_by_rename(kernel, &one, &unit("nbi"), b"int64 and float64");
        put_by_rename(kernel, &one, &unit("2.nbc"), b"float64");
        let fresh = Program::start();
        assert_eq!(get(kernel, &fresh, &unit("nbi")), b"int64 and float64");
        assert_eq!(get(kernel, &fresh, &unit("1.nbc")), b"int64");
        assert_eq!(get(kernel, &fresh, &unit("2.nbc")), b"float64");
    });
}

#[test]
fn p6_units_of_killed_writers_go() {
    in_both_modes(|kernel| {
        let (mut writer, reader) = (Program::start(), Program::start());
        make_dirs(kernel, &writer, KEY);
        put_by_rename(kernel, &writer, "triton/KEY/a", b"new");
        put_by_rename(kernel, &writer, "triton/KEY/b", b"new");
        assert_eq!(
            kernel.rmdir(&reader.caller(), KEY),
            Err(Errno::ENOTEMPTY),
            "the directory holds a draft"
        );
        writer.kill();
        until(kernel, "the directory is empty for all", |kernel| {
            kernel.rmdir(&reader.caller(), KEY) == Ok(())
        });
        kernel.mkdir(&reader.caller(), KEY).unwrap();
        assert_eq!(names(kernel, &reader, KEY), [] as [&str; 0]);
    });
}

#[test]
fn p6_units_that_are_not_complete_do_not_survive_the_daemon() {
    in_both_modes(|kernel| {
        let (writer, reader) = (Program::start(), Program::start());
        make_dirs(kernel, &writer, KEY);
        for (name, whole) in [("a", false), ("b", false), ("__grp__.json", true)] {
            put_by_rename(kernel, &writer, &format!("{KEY}/a"), b"1");
            if name != "a" {
                put_by_rename(kernel, &writer, &format!("{KEY}/b"), b"2");
            }
            if whole {
                put_by_rename(kernel, &writer, "triton/KEY/__grp__.json", b"3");
            }
            kernel.restart(false);
            let all: &[&str] = if whole { &["__grp__.json", "a", "b"] } else { &[] };
            assert_eq!(names(kernel, &reader, KEY), all, "killed after {name}");
            assert_eq!(names(kernel, &reader, ""), ["triton"]);
        }
    });
}

#[test]
fn p6_units_are_removed_as_other_files_are() {
    in_both_modes(|kernel| {
        let (writer, remover) = (Program::start(), Program::start());
        make_dirs(kernel, &writer, KEY);
        for name in ["a", "b", "__grp__.json"] {
            put_by_rename(kernel, &writer, &format!("{KEY}/{name}"), b"1");
        }
        for program in [&remover, &writer] {
            for name in names(kernel, program, KEY) {
                kernel.unlink(&program.caller(), &format!("{KEY}/{name}")).unwrap();
            }
            kernel.rmdir(&program.caller(), KEY).unwrap();
            assert_eq!(names(kernel, &remover, "triton"), [] as [&str; 0]);
            make_dirs(kernel, &writer, KEY);
            for name in ["a", "b", "__grp__.json"] {
                put_by_rename(kernel, &writer, &format!("{KEY}/{name}"), b"2");
            }
        }
        // Its own draft, before that is complete.
        put_by_rename(kernel, &writer, "triton/KEY/c", b"3");
        for name in names(kernel, &writer, KEY) {
            kernel.unlink(&writer.caller(), &format!("{KEY}/{name}")).unwrap();
        }
        kernel.rmdir(&writer.caller(), KEY).unwrap();
        assert_eq!(names(kernel, &remover, "triton"), [] as [&str; 0]);
    });
}

#[test]
fn p6_units_in_a_directory_that_is_renamed() {
    in_both_modes(|kernel| {
        let (writer, reader) = (Program::start(), Program::start());
        make_dirs(kernel, &writer, KEY);
        put_by_rename(kernel, &writer, "triton/KEY/a", b"1");
        kernel.rename(&reader.caller(), KEY, "triton/OTHER").unwrap();
        for program in [&reader, &writer] {
            assert_eq!(get(kernel, program, "triton/OTHER/a"), b"1", "nothing is lost");
            assert_eq!(names(kernel, program, "triton"), ["OTHER"]);
        }
    });
}

#[test]
fn p6_units_in_a_directory_that_cannot_be_renamed() {
    in_both_modes(|kernel| {
        let (writer, reader) = (Program::start(), Program::start());
        make_dirs(kernel, &writer, KEY);
        make_dirs(kernel, &writer, "triton/FULL/below");
        put_by_rename(kernel, &writer, "triton/KEY/a", b"1");
        let who = reader.caller();
        assert_eq!(kernel.rename(&who, KEY, "triton/FULL"), Err(Errno::ENOTEMPTY));
        assert!(missing(kernel, &reader, "triton/KEY/a"), "a rename that fails publishes nothing");
        // An exchange replaces nothing, so no directory has to be empty.
        kernel.exchange(&who, "triton/FULL", KEY).unwrap();
        assert_eq!(names(kernel, &reader, KEY), ["below"]);
        assert_eq!(get(kernel, &writer, "triton/FULL/a"), b"1", "nothing is lost");
        put_by_rename(kernel, &writer, "triton/FULL/b", b"2");
        kernel.exchange(&who, KEY, "triton/FULL").unwrap();
        assert_eq!(names(kernel, &reader, KEY), ["a", "b"]);
    });
}

#[test]
fn names_that_only_look_like_those_of_a_unit_are_ordinary() {
    in_both_modes(|kernel| {
        let (writer, reader) = (Program::start(), Program::start());
        make_dirs(kernel, &writer, "src/KEY");
        for path in ["src/x.nbi", "src/x.1.nbc", "src/KEY/__grp__x.json", "src/KEY/model.done"] {
            put(kernel, &writer, path, b"text");
            assert_eq!(get(kernel, &reader, path), b"text", "{path}");
        }
        assert_eq!(kernel.mkdir(&writer.caller(), ".hearthfs-editions"), Err(Errno::EPERM));
        assert!(missing(kernel, &reader, ".hearthfs-editions"));
        kernel.open(&writer.caller(), ".hearthfs-editions", 1, REPLACE, true).unwrap_err();
    });
}

#[test]
fn p6_units_without_a_marker_are_published_as_they_are() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let kernel = &mut Kernel::start(&runtime, node(&dir), true);
    let end = dir.path().join("end");
    let (idle, ends) = (Program::start(), Program::start_until(&end));
    let reader = Program::start();
    make_dirs(kernel, &idle, "triton/IDLE");
    make_dirs(kernel, &idle, "triton/ENDS");
    make_dirs(kernel, &idle, "numba/d");
    put(kernel, &idle, "triton/IDLE/a", b"1");
    put(kernel, &idle, "triton/IDLE/b", b"2");
    // An index that refers to missing data is not shown to others.
    put_by_rename(kernel, &idle, "numba/d/m.f-1.py311.nbi", b"index");
    put(kernel, &ends, "triton/ENDS/a", b"3");
    assert!(missing(kernel, &reader, "triton/ENDS/a"));
    std::fs::write(end, b"").unwrap();
    until(kernel, "the files of an ended process", |kernel| {
        !missing(kernel, &reader, "triton/ENDS/a")
    });
    assert!(missing(kernel, &reader, "triton/IDLE/a"), "the writer may continue");
    until(kernel, "the files of an idle process", |kernel| {
        !missing(kernel, &reader, "triton/IDLE/a")
    });
    assert_eq!(get(kernel, &reader, "triton/IDLE/b"), b"2", "the whole unit at once");
    assert!(missing(kernel, &reader, "numba/d/m.f-1.py311.nbi"));
    put_by_rename(kernel, &idle, "numba/d/m.f-1.py311.1.nbc", b"data");
    assert_eq!(get(kernel, &reader, "numba/d/m.f-1.py311.nbi"), b"index");
}

#[test]
fn p6_units_written_by_several_processes() {
    in_both_modes(|kernel| {
        let (parent, child, reader) = (Program::start(), Program::start(), Program::start());
        let module = "neuron/neuronxcc-1/MODULE_1+2";
        make_dirs(kernel, &parent, module);
        let at = |name: &str| format!("{module}/{name}");
        put(kernel, &parent, &at("model.hlo_module.pb"), b"hlo");
        put(kernel, &child, &at("model.neff"), b"neff");
        assert_eq!(get(kernel, &parent, &at("model.neff")), b"neff", "both share one draft");
        assert_eq!(get(kernel, &child, &at("model.hlo_module.pb")), b"hlo");
        assert!(missing(kernel, &reader, &at("model.neff")));
        put(kernel, &parent, &at("model.done"), b"");
        for name in ["model.done", "model.neff", "model.hlo_module.pb"] {
            assert!(!missing(kernel, &reader, &at(name)), "{name}");
        }
    });
}

#[test]
fn bad_input_units_in_an_odd_order() {
    in_both_modes(|kernel| {
        let (writer, reader) = (Program::start(), Program::start());
        make_dirs(kernel, &writer, KEY);
        // A marker alone, and members after it.
        put(kernel, &writer, "triton/KEY/__grp__.json", b"1");
        assert_eq!(names(kernel, &reader, KEY), ["__grp__.json"]);
        put(kernel, &writer, "triton/KEY/a", b"2");
        assert_eq!(names(kernel, &reader, KEY), ["__grp__.json"]);
        assert_eq!(names(kernel, &writer, KEY), ["__grp__.json", "a"]);
        // The marker again: no earlier member is lost.
        put(kernel, &writer, "triton/KEY/__grp__.json", b"3");
        assert_eq!(names(kernel, &reader, KEY), ["__grp__.json", "a"]);
        // Links, and a file that is still open.
        kernel.open(&writer.caller(), "triton/KEY/b", 1, REPLACE, true).unwrap();
        kernel.write(1, 0, b"4").unwrap();
        kernel.symlink(&writer.caller(), "triton/KEY/c", "a").unwrap();
        kernel.link(&writer.caller(), "triton/KEY/a", "triton/KEY/d").unwrap();
        put(kernel, &writer, "triton/KEY/__grp__.json", b"5");
        assert_eq!(names(kernel, &reader, KEY), ["__grp__.json", "a", "c", "d"]);
        assert_eq!(get(kernel, &reader, "triton/KEY/d"), b"2");
        kernel.close(&writer.caller(), 1).unwrap();
        assert_eq!(get(kernel, &writer, "triton/KEY/b"), b"4");
        put(kernel, &writer, "triton/KEY/__grp__.json", b"6");
        assert_eq!(get(kernel, &reader, "triton/KEY/b"), b"4");
        // A member that is moved out of its unit, by its writer and by another process.
        kernel.rename(&writer.caller(), "triton/KEY/b", "b").unwrap();
        assert_eq!(get(kernel, &writer, "b"), b"4");
        kernel.rename(&reader.caller(), "triton/KEY/c", "c").unwrap();
        assert!(!names(kernel, &reader, KEY).contains(&"c".to_owned()));
    });
}

#[test]
fn p6_units_that_are_removed_under_their_readers() {
    in_both_modes(|kernel| {
        let (writer, reader) = (Program::start(), Program::start());
        make_dirs(kernel, &writer, KEY);
        put(kernel, &writer, "triton/KEY/a", b"1");
        put(kernel, &writer, "triton/KEY/__grp__.json", b"2");
        for name in ["__grp__.json", "a", "__grp__.json"] {
            get(kernel, &reader, &format!("{KEY}/{name}"));
        }
        for name in ["__grp__.json", "a"] {
            kernel.unlink(&writer.caller(), &format!("{KEY}/{name}")).unwrap();
        }
        assert_eq!(get(kernel, &reader, "triton/KEY/a"), b"1", "the reader keeps its version");
        assert!(missing(kernel, &reader, "triton/KEY/__grp__.json"));
        assert!(missing(kernel, &reader, "triton/KEY/a"));
    });
}

#[test]
fn bad_input_units_that_are_too_large() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let kernel = &mut Kernel::start(&runtime, node(&dir), true);
    let (writer, reader) = (Program::start(), Program::start());
    make_dirs(kernel, &writer, KEY);
    let many = 4200;
    for number in 0..many {
        put(kernel, &writer, &format!("{KEY}/{number}"), b"");
    }
    assert!(missing(kernel, &reader, "triton/KEY/0"));
    put(kernel, &writer, "triton/KEY/__grp__.json", b"1");
    assert_eq!(names(kernel, &reader, KEY).len(), many + 1, "nothing is lost");
    // From now on they are ordinary files.
    put(kernel, &reader, "triton/KEY/more", b"2");
    assert_eq!(get(kernel, &Program::start(), "triton/KEY/more"), b"2");
}
