//! The file names of real programs, and how they are classified.

use super::*;

const H16: &str = "0123456789abcdef";

fn path(text: &str) -> TreePath {
    crate::name::path(&text.replace("H64", &H16.repeat(4)).replace("H16", H16))
}

/// Describes in one line how a path is classified.
fn said(profiles: &Profiles, text: &str) -> String {
    let path = path(text);
    let class = profiles.classify(&path);
    let mut line = match class.kind {
        FileKind::Ordinary => "ordinary".to_owned(),
        FileKind::Temporary => "temporary".to_owned(),
        FileKind::NodeLocal => "node-local".to_owned(),
        FileKind::Lock(scope) => format!("lock {scope:?}").to_lowercase(),
        FileKind::WriteOnce => "write-once".to_owned(),
        FileKind::Unit(part) => {
            let prefix = String::from_utf8_lossy(part.key.prefix).replace('\0', "/");
            let role = match (part.is_entry, part.is_marker) {
                (true, true) => "entry+marker",
                (true, false) => "entry",
                (false, true) => "marker",
                (false, false) => "member",
            };
            format!("{role} of {prefix}").replace(&H16.repeat(4), "H64")
        }
    };
    if let Some(check) = class.check {
        line.push_str(&format!(" {check:?}").to_lowercase());
    }
    if let Some(touch) = class.touch {
        line.push_str(&format!(" {touch:?}").to_lowercase());
    }
    line
}

#[track_caller]
fn table(rows: &[(&str, &str)]) {
    for (text, wanted) in rows {
        assert_eq!(said(&Profiles::default(), text), *wanted, "{text}");
    }
}

#[test]
fn names_of_jax_and_xla() {
    table(&[
        ("jax/jit__lambda-H64-cache", "write-once zstd"),
        ("jax/jit__lambda-H64-atime", "ordinary content"),
        ("jax/.lockfile", "node-local"),
        ("jax", "ordinary"),
        ("elsewhere/jit__lambda-H64-cache", "ordinary"),
        ("jax/xla_gpu_kernel_cache_file", "ordinary"),
        ("jax/xla_gpu_kernel_cache_file.tmp.a1B2c3", "temporary"),
        ("jax/xla_gpu_per_fusion_autotune_cache_dir", "ordinary"),
        ("jax/xla_gpu_per_fusion_autotune_cache_dir/tmp", "temporary"),
        (
            "jax/xla_gpu_per_fusion_autotune_cache_dir/tmp/tmp_per_fusion_cache_H64_17.textproto",
            "temporary",
        ),
        ("jax/xla_gpu_per_fusion_autotune_cache_dir/kA0_-b9=.textproto", "write-once"),
        ("jax/xla_gpu_per_fusion_autotune_cache_dir/H100/.tmp_FP_12_17", "temporary"),
        ("jax/xla_gpu_per_fusion_autotune_cache_dir/H100/v2/FP.pb", "write-once"),
    ]);
}

#[test]
fn names_of_numba() {
    table(&[
        (
            "numba/src_H16/t.f-2.py311.nbi",
            "entry of numba/src_H16/t.f-2.py311".replace("H16", H16).as_str(),
        ),
        ("x/__pycache__/t.f-2.py311.1.nbc", "marker of x/__pycache__/t.f-2.py311"),
        ("x/__pycache__/t.f-2.py311.nbi", "entry of x/__pycache__/t.f-2.py311"),
        // Elsewhere they are ordinary files.
        ("x/t.f-2.py311.nbi", "ordinary"),
        ("t.f-2.py311.12.nbc", "ordinary"),
        ("numba/d/t.f-2.py311.nbi.tmp.H16", "temporary"),
        ("numba/d/t.f-2.py311.1.nbc.tmp.H16", "temporary"),
        ("numba/d/x1b2c3d4", "ordinary"),
    ]);
}

#[test]
fn names_of_triton_and_inductor() {
    table(&[
        ("triton/H64/__grp__add.json", "entry+marker of triton/H64 json"),
        ("triton/H64/add.json", "member of triton/H64"),
        ("triton/H64/add.cubin", "member of triton/H64 elf"),
        ("triton/H64", "ordinary"),
        ("triton/H64/tmp.pid_123_b9f3c8f0-aaaa/add.ptx", "temporary"),
        ("triton/H64/tmp.pid_123_b9f3c8f0-aaaa", "temporary"),
        ("triton/H64/__triton_launcher.cpython-311-x86_64-linux-gnu.so", "write-once elf"),
        ("inductor/triton/0/H64/__grp__k.json", "entry+marker of inductor/triton/0/H64 json"),
        ("inductor/triton/0/H64/k.ttir", "member of inductor/triton/0/H64"),
        ("inductor/triton/0/tmp.b9f3c8f0-aaaa/k.ttir", "temporary"),
        ("inductor/ab/.123.140023.tmp", "temporary"),
        ("inductor/fxgraph/yy/fkey/.123.140023.tmp", "temporary"),
        ("inductor/fxgraph/yy/fkey/H64", "write-once"),
        ("inductor/aotautograd/akey/H64", "write-once"),
        ("inductor/ab/cabc.py", "write-once"),
        ("inductor/ab/cabc.so", "write-once elf"),
        ("inductor/ab/cabc_CxxBuild", "temporary"),
        ("inductor/ab/cabc_CxxBuild/build.log", "temporary"),
        ("inductor/locks/ckey.lock", "node-local"),
        ("inductor/cache.json", "ordinary"),
        ("src/Cargo.lock", "ordinary"),
        ("triton-dejavu/dejavu_0.7/a/b/cache.json", "ordinary json"),
    ]);
}

#[test]
fn names_of_vllm() {
    table(&[
        (
            "vllm/torch_compile_cache/abc/rank_0_0/backbone/vllm_compile_cache.py",
            "entry+marker of vllm/torch_compile_cache/abc/rank_0_0/backbone",
        ),
        (
            "vllm/torch_compile_cache/abc/rank_0_0/backbone/artifact_compile_0/x/y",
            "member of vllm/torch_compile_cache/abc/rank_0_0/backbone",
        ),
        ("vllm/torch_compile_cache/abc/rank_0_0/inductor_cache/ab/c.py", "write-once"),
        // Below a directory of TorchInductor, no file is a member of a unit of vLLM.
        ("vllm/torch_compile_cache/abc/rank_0_0/inductor_cache/other", "ordinary"),
        (
            "vllm/torch_compile_cache/abc/rank_0_0/triton_cache/H64/k.ptx",
            "member of vllm/torch_compile_cache/abc/rank_0_0/triton_cache/H64",
        ),
        (
            "vllm/torch_compile_cache/abc/rank_0_0/inductor_cache/triton/0/H64/k.ptx",
            "member of vllm/torch_compile_cache/abc/rank_0_0/inductor_cache/triton/0/H64",
        ),
        ("vllm/torch_aot_compile/abc/rank_0_0/model", "ordinary"),
        (
            "vllm/neuron/compile_cache/H64/.compilation_complete",
            "entry+marker of vllm/neuron/compile_cache/H64",
        ),
    ]);
}

#[test]
fn names_of_neuron_and_the_other_frameworks() {
    let module = "neuron/neuronxcc-2.20.0+replay/MODULE_k+d41d8cd9";
    for (name, role) in [
        ("model.done", "entry+marker"),
        ("model.neff", "member"),
        ("model.hlo_module.pb", "member"),
        ("model.log", "member"),
    ] {
        table(&[(&format!("{module}/{name}"), &format!("{role} of {module}"))]);
    }
    table(&[
        (&format!("{module}/model.hlo_module.pb.lock"), "lock cluster"),
        ("torch_extensions/ext/lock", "lock cluster"),
        ("torch_extensions/py311_cu128/ext/lock", "lock cluster"),
        ("torch_extensions/ext/ext.so", "ordinary elf"),
        ("torch_extensions/ext/build.ninja", "ordinary"),
        ("torch_xla/161803398874989484820458683436563811772", "write-once"),
        ("nns/_parallel_modules/m/M/_/gencode0.py", "ordinary"),
        ("nns/_parallel_modules/m/M/_/compute_config.pt", "ordinary"),
        ("nns/_parallel_modules/m/M/_/__pycache__/gencode0.cpython-311.pyc.1402", "temporary"),
        ("nns/_parallel_modules/m/M/_/__pycache__/gencode0.cpython-311.pyc", "ordinary"),
    ]);
}

#[test]
fn names_of_compiler_caches() {
    table(&[
        ("ccache/stats", "node-local"),
        ("ccache/4/stats", "node-local"),
        ("ccache/4/b/stats", "node-local"),
        ("ccache/4/stats.lock", "lock node"),
        ("ccache/4/stats.tmp.Qx1y2z.tmp", "temporary"),
        ("ccache/lock/subdir_4b.lock", "lock node"),
        ("ccache/lock/subdir_4b.alive", "node-local"),
        ("ccache/4/stats.alive", "node-local"),
        ("ccache/CACHEDIR.TAG", "node-local"),
        ("ccache/9/CACHEDIR.TAG", "node-local"),
        ("ccache/tmp", "temporary"),
        ("ccache/tmp/cpp_stdout.aB3.i", "temporary"),
        ("ccache/4/b/c8hd21nvu6rt8kdlj2v5m6e0ri0p7k4R", "write-once times"),
        ("ccache/4/b/1/c8hd21nvu6rt8kdlj2v5m6e0ri0p7k4R", "write-once times"),
        ("ccache/4/b/c8hd21nvu6rt8kdlj2v5m6e0ri0p7k4M", "ordinary times"),
        ("ccache/4/b/c8hd21nvu6rt8kdlj2v5m6e0ri0p7k4R.tmp.aB3xyz.tmp", "temporary"),
        ("ccache/4/b/c8hd21nvu6rt8kdlj2v5m6e0ri0p7k4R.ccache.tmp.remove", "temporary"),
        ("ccache/ccache.conf", "ordinary"),
        ("sccache/.sccachetmpAb3dE9", "temporary"),
        ("sccache/a/b/abH64", "write-once times"),
        ("sccache/preprocessor/a/b/c/abcH64", "write-once times"),
        ("go-build/ab/H64-a", "write-once times"),
        ("go-build/ab/H64-d", "write-once times"),
        ("go-build/trim.txt", "ordinary"),
        ("bazel/tmp/6f0c-aaaa", "temporary"),
        ("bazel/cas/ab/H64", "write-once times"),
        ("bazel/ac/ab/H64", "write-once times"),
        ("bazel/gc/lock", "node-local"),
    ]);
}

#[test]
fn ordinary_names_elsewhere_are_ordinary() {
    table(&[
        ("stats", "ordinary"),
        ("project/stats", "ordinary"),
        ("project/LOCK", "ordinary"),
        ("project/lock", "ordinary"),
        ("project/Cargo.lock", "ordinary"),
        ("project/tmp/x", "ordinary"),
        ("tmp", "ordinary"),
        ("project/CACHEDIR.TAG", "ordinary"),
        ("project/ccache/stats", "ordinary"),
        ("project/x.tmp.y.tmp", "ordinary"),
        ("project/x-cache", "ordinary"),
        ("project/H64/__grp__x.json", "ordinary"),
        ("project/cache.json", "ordinary"),
        ("project/x.so", "ordinary"),
    ]);
    let deep = vec!["tmp"; 60].join("/");
    table(&[(&format!("ccache/{deep}"), "ordinary")]);
}

#[test]
fn keys_tell_units_apart() {
    let profiles = Profiles::default();
    let dir = path("triton/H64");
    let key = |of: &str| {
        let leaked: &'static TreePath = Box::leak(Box::new(path(of)));
        match profiles.classify(leaked).kind {
            FileKind::Unit(part) => part.key,
            other => panic!("{of}: {other:?}"),
        }
    };
    let (json, ptx) = (key("triton/H64/add.json"), key("triton/H64/add.ptx"));
    assert_eq!(json, ptx);
    assert_eq!((json.prefix, json.dir_bytes as usize), (dir.as_bytes(), dir.as_bytes().len()));
    assert_ne!(json, key("triton/other/add.json"));
    let (index, data) = (key("numba/d/m.f-1.py311.nbi"), key("numba/d/m.f-1.py311.2.nbc"));
    assert_eq!(index, data);
    assert_eq!(index.dir_bytes as usize, "numba/d".len());
    assert_ne!(index, key("numba/d/m.g-9.py311.nbi"));
    assert_ne!(index, key("numba/e/m.f-1.py311.nbi"));
}

#[test]
fn a_unit_in_the_root_has_no_directory() {
    let everywhere = with("[numba]\nalso = [\"**\"]\n").unwrap();
    let index = path("m.f-1.py311.nbi");
    let FileKind::Unit(part) = everywhere.classify(&index).kind else { panic!("not a unit") };
    assert_eq!((part.key.dir_bytes, part.key.prefix), (0, &b"m.f-1.py311"[..]));
}

/// Reads further keys on top of those that come with the program, as the configuration does.
fn with(text: &str) -> Result<Profiles, String> {
    let mut draft = ProfileDraft::shipped();
    for (name, content) in DeTable::parse(text).expect("TOML").into_inner() {
        let DeValue::Table(content) = content.into_inner() else { panic!("not a table") };
        for (key, value) in content {
            let result = draft.set(name.get_ref(), key.get_ref(), value);
            result.map_err(|refused| format!("{name:?}.{key:?}: {refused}"))?;
        }
    }
    draft.finish().map_err(|(name, refused)| format!("{name}: {refused}"))
}

#[test]
fn what_is_added_goes_first() {
    let mine = with(
        "[ccache]\nalso = [\"teams/*/ccache\", \"**/my-ccache\"]\n\
         rules = [{ names = [\"?/stats\"], kind = \"ordinary\" }]\n\
         [mine]\ndir = \"mine\"\nrules = [{ names = [\"*.part\"], kind = \"temporary\" }]\n\
         [go]\nenabled = false\n",
    )
    .expect("good");
    for (text, wanted) in [
        ("ccache/4/stats", "ordinary"),
        ("ccache/stats", "node-local"),
        ("teams/a/ccache/stats", "node-local"),
        ("teams/ccache/stats", "ordinary"),
        ("x/y/my-ccache/4/b/stats", "node-local"),
        ("mine/x.part", "temporary"),
        ("mine/sub/x.part", "ordinary"),
        ("go-build/ab/H64-d", "ordinary"),
        ("jax/.lockfile", "node-local"),
    ] {
        assert_eq!(said(&mine, text), wanted, "{text}");
    }
    assert!(mine.get("go").is_none() && mine.get("mine").is_some());
}

#[test]
fn what_cannot_be_is_refused() {
    for (text, words) in [
        (
            "[ccache]\nrules = [{ names = [\"x\"], kind = \"temporay\" }]\n",
            &["temporay", "temporary"][..],
        ),
        ("[ccache]\nrules = [{ names = [], kind = \"temporary\" }]\n", &["at least one"]),
        ("[ccache]\nrules = [{ names = [\"x\"], kind = \"lock\" }]\n", &["scope", "cluster"]),
        ("[ccache]\nrules = [{ names = [\"x\"], kind = \"check\" }]\n", &["format", "zstd"]),
        ("[ccache]\nrules = [{ names = [\"x\"], kind = \"touched\" }]\n", &["changes", "times"]),
        ("[ccache]\nrules = [{ names = [\"x\"], kind = \"unit\" }]\n", &["`in`", "{stem}"]),
        ("[ccache]\nrules = [{ names = [\"{stem}.a\"], kind = \"temporary\" }]\n", &["{stem}"]),
        (
            "[ccache]\nrules = [{ names = [\"{stem}.a\"], kind = \"unit\", entry = \"b\" }]\n",
            &["either all"],
        ),
        (
            "[ccache]\nrules = [{ names = [\"x\"], kind = \"lock\", in = \"y\" }]\n",
            &["`in`", "unit"],
        ),
        ("[ccache]\nrules = [{ names = [\"x\"], kidn = \"lock\" }]\n", &["kidn", "kind"]),
        ("[ccache]\nalso = [\"a/**\"]\n", &["a/**", "directory"]),
        ("[ccache]\nalso = [\"a//b\"]\n", &["a//b", "empty"]),
        ("[ccache]\ndir = \"a/*\"\n", &["a/*", "not a pattern"]),
        ("[ccache]\nneeds_dir = \"yes\"\n", &["boolean"]),
        ("[ccache]\nenabled = 1\n", &["true or false"]),
        ("[ccache]\nvariables = [\"A=B\"]\n", &["A=B"]),
        ("[ccache]\nprogram = [\"a-{hex}\"]\n", &["a-{hex}", "{stem}"]),
        ("[ccache]\nprogram = [\"{stem}/{stem}.a\"]\n", &["exactly one"]),
        ("[ccache]\nprogram = [\"**/{stem}.a\"]\n", &["`**`", "no end"]),
        ("[ccache]\ncolour = 1\n", &["unknown key"]),
        ("[mine]\nvariables = [\"MINE\"]\n", &["mine", "dir"]),
        ("[mine]\nrules = [{ names = [\"x\"], kind = \"temporary\" }]\n", &["mine", "`also`"]),
        ("[Mine]\ndir = \"x\"\n", &["Mine", "a-z"]),
    ] {
        let error = with(text).expect_err(text);
        for word in words {
            assert!(error.contains(word), "{text}: `{word}` is not in: {error}");
        }
    }
}
