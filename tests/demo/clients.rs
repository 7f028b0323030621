//! The compilers that this can be shown with: JAX, or what else is there.
//!
//! Each compiles the same thing on a node through `hearthfs run`, which sets the variable that points
//! its cache at the mount, and tells from its own reports what came from the cache.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hearthfs::clock::Clock;

use crate::process::{Stop, succeed};
use crate::python;
use crate::world::{Node, World, find_program};
use crate::{Failure, Step, say};

/// How long one compilation may take.
const COMPILE_WITHIN: Duration = Duration::from_mins(10);
/// How many C files ccache is given, and packages Go, beside its library.
const SOURCES: usize = 8;

/// What a client saw on one node.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) seconds: f64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// What the compiled programs came to; the same on every node.
    pub(crate) answer: String,
}

/// A compiler with a cache.
#[derive(Debug)]
pub(crate) enum Client {
    /// JAX, with the Python that has it.
    Jax(PathBuf),
    /// ccache, in front of a C compiler.
    Ccache {
        /// The C compiler.
        compiler: PathBuf,
    },
    /// The Go compiler, whose cache is built in.
    Go,
}

impl Client {
    /// Takes the client that was asked for, or the first that is there.
    pub(crate) fn choose(name: Option<&str>, stop: &Stop) -> Step<Self> {
        match name {
            Some("jax") => python::with_jax(stop).map(Self::Jax),
            Some("ccache") => Self::ccache().ok_or_else(|| missing("ccache and a C compiler")),
            Some("go") => Self::go().ok_or_else(|| missing("go")),
            Some(other) => Err(Failure::Missing(format!(
                "`{other}` is no client that this knows; jax, ccache and go are"
            ))),
            None => Self::first(stop),
        }
    }

    fn first(stop: &Stop) -> Step<Self> {
        let why = match python::with_jax(stop) {
            Ok(python) => return Ok(Self::Jax(python)),
            Err(Failure::Missing(why)) => why,
            Err(failed) => return Err(failed),
        };
        say(format_args!("JAX cannot be used: {why}"));
        let Some(other) = Self::ccache().or_else(Self::go) else {
            return Err(Failure::Missing(
                "no compiler with a cache is here: JAX cannot be used, and there is neither `ccache` (with \
                 `cc`) nor `go`; install one of them, or Python 3.11 or newer with venv and pip"
                    .to_owned(),
            ));
        };
        say(format_args!("showing the same with {}", other.name()));
        Ok(other)
    }

    fn ccache() -> Option<Self> {
        find_program("ccache")?;
        let compiler = ["cc", "gcc", "clang"].into_iter().find_map(find_program)?;
        Some(Self::Ccache { compiler })
    }

    fn go() -> Option<Self> {
        find_program("go").map(|_| Self::Go)
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Jax(_) => "JAX",
            Self::Ccache { .. } => "ccache",
            Self::Go => "Go",
        }
    }

    /// Returns what it calls the things that it compiles.
    pub(crate) fn noun(&self) -> &'static str {
        match self {
            Self::Jax(_) => "programs",
            Self::Ccache { .. } => "objects",
            Self::Go => "packages",
        }
    }

    /// Writes what is to be compiled.
    pub(crate) fn prepare(&self, world: &World) -> Step<()> {
        let work = world.work();
        let failed = |error| Failure::Failed(format!("cannot write the sources: {error}"));
        let write = |name: &str, text: &str| {
            let path = work.join(name);
            std::fs::create_dir_all(path.parent().unwrap_or(&work))
                .and_then(|()| std::fs::write(&path, text))
                .map_err(failed)
        };
        match self {
            Self::Jax(_) => write("program.py", include_str!("program.py")),
            Self::Ccache { .. } => {
                (0..SOURCES).try_for_each(|n| write(&format!("unit{n}.c"), &c_source(n)))
            }
            Self::Go => {
                write("go.mod", "module hearth\n\ngo 1.18\n")?;
                write("main.go", &go_main())?;
                (0..SOURCES).try_for_each(|n| write(&format!("unit{n}/unit.go"), &go_source(n)))
            }
        }
    }

    /// Compiles everything on a node, in fresh processes.
    pub(crate) fn compile(&self, world: &World, node: &Node<'_>, stop: &Stop) -> Step<Seen> {
        match self {
            Self::Jax(python) => jax(python, &world.work(), node, stop),
            Self::Ccache { compiler } => ccache(compiler, &world.work(), node, stop),
            Self::Go => go(&world.work(), node, stop),
        }
    }
}

fn missing(what: &str) -> Failure {
    Failure::Missing(format!("{what}: not found"))
}

fn words<'a>(words: &[&'a str]) -> Vec<&'a OsStr> {
    words.iter().map(|word| OsStr::new(*word)).collect()
}

fn jax(python: &Path, work: &Path, node: &Node<'_>, stop: &Stop) -> Step<Seen> {
    let program = work.join("program.py");
    let mut command = node.run(&[python.as_os_str(), program.as_os_str()]);
    command
        .current_dir(work)
        .env("JAX_PLATFORMS", "cpu")
        // By default JAX keeps only what took a second to compile.
        .env("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        .env("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        // JAX puts the path of its side caches, which are for GPUs, into every key. Nodes of a cluster
        // mount at one path; two mounts of one machine cannot.
        .env("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none");
    let (out, err) = succeed(&mut command, COMPILE_WITHIN, stop)?;
    pass_on(node, &err);
    let line = out.lines().last().unwrap_or_default();
    let wrong = || Failure::Failed(format!("the program printed something else: {out}"));
    let said: serde_json::Value = serde_json::from_str(line).map_err(|_| wrong())?;
    let number = |key: &str| said[key].as_u64().ok_or_else(wrong);
    Ok(Seen {
        seconds: said["seconds"].as_f64().ok_or_else(wrong)?,
        hits: number("hits")?,
        misses: number("misses")?,
        answer: said["answer"].as_str().ok_or_else(wrong)?.to_owned(),
    })
}

fn ccache(compiler: &Path, work: &Path, node: &Node<'_>, stop: &Stop) -> Step<Seen> {
    let log = work.join(format!("{}.stats", node.name));
    let out = work.join(format!("{}.objects", node.name));
    let failed = |error| Failure::Failed(format!("ccache: {error}"));
    std::fs::create_dir_all(&out).map_err(failed)?;
    // One shell for all, so that `hearthfs run` waits for the store once.
    let script = "out=$1; cc=$2; shift 2; for unit; do ccache \"$cc\" -O2 -c \"$unit.c\" -o \
                  \"$out/$unit.o\" || exit 1; done";
    let names: Vec<String> = (0..SOURCES).map(|n| format!("unit{n}")).collect();
    let mut line = words(&["sh", "-ec", script, "sh"]);
    line.extend([out.as_os_str(), compiler.as_os_str()]);
    line.extend(names.iter().map(OsStr::new));
    let mut command = node.run(&line);
    // What ccache keeps on the node itself starts empty, as on a new machine.
    let own = work.join(format!("{}.ccache", node.name));
    command.current_dir(work).env("CCACHE_STATSLOG", &log).env("CCACHE_DIR", own);
    let clock = Clock::system();
    let (_, err) = succeed(&mut command, COMPILE_WITHIN, stop)?;
    let seconds = clock.mono().as_secs_f64();
    pass_on(node, &err);
    let text = std::fs::read_to_string(&log).map_err(failed)?;
    let count = |wanted: &[&str]| text.lines().filter(|line| wanted.contains(line)).count() as u64;
    let mut objects = Vec::new();
    for name in &names {
        objects.extend(std::fs::read(out.join(format!("{name}.o"))).map_err(failed)?);
    }
    Ok(Seen {
        seconds,
        hits: count(&["direct_cache_hit", "preprocessed_cache_hit"]),
        misses: count(&["cache_miss"]),
        answer: hearthfs::digest::Digest::of(&objects).to_string(),
    })
}

fn go(work: &Path, node: &Node<'_>, stop: &Stop) -> Step<Seen> {
    let program = work.join(format!("{}.program", node.name));
    let set = |command: &mut std::process::Command| {
        command.current_dir(work);
        for (name, value) in [
            ("GOFLAGS", "-mod=mod -trimpath"),
            ("GOPROXY", "off"),
            ("GOTOOLCHAIN", "local"),
            ("CGO_ENABLED", "0"),
            ("GOWORK", "off"),
            ("GOENV", "off"),
        ] {
            command.env(name, value);
        }
    };
    let mut line = words(&["go", "build", "-x", "-o"]);
    line.extend([program.as_os_str(), OsStr::new(".")]);
    let mut command = node.run(&line);
    set(&mut command);
    let clock = Clock::system();
    let (_, err) = succeed(&mut command, COMPILE_WITHIN, stop)?;
    let seconds = clock.mono().as_secs_f64();
    // With -x it prints every command that it runs; what it does not compile came from the cache.
    let misses = err.lines().filter(|line| line.contains("/compile ")).count() as u64;
    let mut list = node.run(&words(&["go", "list", "-deps", "."]));
    set(&mut list);
    let (all, _) = succeed(&mut list, COMPILE_WITHIN, stop)?;
    // `unsafe` is a package in name only.
    let packages = all.lines().filter(|line| *line != "unsafe").count() as u64;
    let mut run = std::process::Command::new(&program);
    let (answer, _) = succeed(&mut run, COMPILE_WITHIN, stop)?;
    Ok(Seen { seconds, hits: packages.saturating_sub(misses), misses, answer })
}

/// Shows what a client or `hearthfs run` had to say.
fn pass_on(node: &Node<'_>, text: &str) {
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        say(format_args!("{}: {line}", node.name));
    }
}

fn join(count: usize, one: impl Fn(usize) -> String) -> String {
    (0..count).map(one).collect::<Vec<_>>().concat()
}

fn c_source(n: usize) -> String {
    let cases =
        join(400, |case| format!("    case {case}: x = x * {} + {n}; break;\n", case * 7 + 1));
    format!(
        "int unit{n}(int key, int x) {{\n    switch (key) {{\n{cases}    }}\n    return x;\n}}\n"
    )
}

fn go_source(n: usize) -> String {
    format!("package unit{n}\n\nfunc Of(x int) int {{\n\treturn x*{} + {n}\n}}\n", n + 3)
}

fn go_main() -> String {
    let imports = join(SOURCES, |n| format!("\t\"hearth/unit{n}\"\n"));
    let calls = join(SOURCES, |n| format!("\tx = unit{n}.Of(x)\n"));
    format!(
        "package main\n\nimport (\n\t\"fmt\"\n{imports})\n\nfunc main() {{\n\tx := 1\n{calls}\tfmt.Println(x)\n}}\n"
    )
}
