//! The compilers that the demonstration can use: JAX, or another one that is installed.
//!
//! Each compiles the same thing on a node through `hearthfs run`, which sets the variable that
//! points its cache at the mount. The compiler's own reports show what came from the cache.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock::Clock;

use super::process::{Stop, succeed};
use super::python;
use super::say;
use super::world::{DemoNode, World, find_program};
use crate::cli::failure::{Exit, Failure, Outcome};

/// How long one compilation may take.
const COMPILE_WITHIN: Duration = Duration::from_mins(10);
/// How many C files ccache compiles, and how many packages Go, besides its library.
const SOURCES: usize = 8;

/// The result of a client on one node.
#[derive(Debug)]
pub(super) struct ClientRun {
    pub(super) seconds: f64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    /// The output of the compiled programs; the same on every node.
    pub(super) answer: String,
}

/// A compiler with a cache.
#[derive(Debug)]
pub(super) enum Compiler {
    /// JAX, with the Python that has it installed.
    Jax(PathBuf),
    /// ccache, in front of a C compiler.
    Ccache {
        /// The C compiler.
        compiler: PathBuf,
    },
    /// The Go compiler, whose cache is built in.
    Go,
    /// A C compiler with a cache of a few lines of shell, if nothing else is installed.
    Cc {
        /// The C compiler.
        compiler: PathBuf,
    },
}

impl Compiler {
    /// Takes the requested client, or the first one that is installed.
    pub(super) fn choose(name: Option<&str>, stop: &Stop) -> Outcome<Self> {
        match name {
            Some("jax") => python::with_jax(stop).map(Self::Jax),
            Some("ccache") => Self::ccache().ok_or_else(|| missing("ccache and a C compiler")),
            Some("go") => Self::go().ok_or_else(|| missing("go")),
            Some("cc") => Self::cc().ok_or_else(|| missing("a C compiler")),
            Some(other) => Err(Failure::refused(format!(
                "`{other}` is not a known client; use jax, ccache, go or cc"
            ))),
            None => Self::first(stop),
        }
    }

    fn first(stop: &Stop) -> Outcome<Self> {
        let why = match python::with_jax(stop) {
            Ok(python) => return Ok(Self::Jax(python)),
            Err(failure) if failure.exit == Exit::Refused => failure.messages.join("; "),
            Err(failed) => return Err(failed),
        };
        say(format_args!("JAX cannot be used: {why}"));
        let Some(other) = Self::ccache().or_else(Self::go).or_else(Self::cc) else {
            return Err(Failure::refused("no compiler was found: neither JAX, nor `go`, nor `cc`")
                .hint("install a C compiler, or Python 3.11 or newer with venv and pip"));
        };
        say(format_args!("showing the same with {}", other.name()));
        Ok(other)
    }

    fn ccache() -> Option<Self> {
        find_program("ccache")?;
        Some(Self::Ccache { compiler: c_compiler()? })
    }

    fn cc() -> Option<Self> {
        Some(Self::Cc { compiler: c_compiler()? })
    }

    fn go() -> Option<Self> {
        find_program("go").map(|_| Self::Go)
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Jax(_) => "JAX",
            Self::Ccache { .. } => "ccache",
            Self::Go => "Go",
            Self::Cc { .. } => "a C compiler with a cache of a few lines of shell",
        }
    }

    /// Returns the noun for the things that it compiles.
    pub(super) fn noun(&self) -> &'static str {
        match self {
            Self::Jax(_) => "programs",
            Self::Ccache { .. } | Self::Cc { .. } => "objects",
            Self::Go => "packages",
        }
    }

    /// Writes the sources.
    pub(super) fn prepare(&self, world: &World) -> Outcome<()> {
        let work = world.work();
        let failed = |error| Failure::failed(format!("cannot write the sources: {error}"));
        let write = |name: &str, text: &str| {
            let path = work.join(name);
            std::fs::create_dir_all(path.parent().unwrap_or(&work))
                .and_then(|()| std::fs::write(&path, text))
                .map_err(failed)
        };
        match self {
            Self::Jax(_) => write("program.py", include_str!("program.py")),
            Self::Ccache { .. } | Self::Cc { .. } => {
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
    pub(super) fn compile(
        &self,
        world: &World,
        node: &DemoNode<'_>,
        stop: &Stop,
    ) -> Outcome<ClientRun> {
        match self {
            Self::Jax(python) => jax(python, &world.work(), node, stop),
            Self::Ccache { compiler } => ccache(compiler, &world.work(), node, stop),
            Self::Go => go(&world.work(), node, stop),
            Self::Cc { compiler } => cc(compiler, &world.work(), node, stop),
        }
    }
}

fn c_compiler() -> Option<PathBuf> {
    ["cc", "gcc", "clang"].into_iter().find_map(find_program)
}

fn missing(what: &str) -> Failure {
    Failure::refused(format!("{what}: not found"))
}

fn words<'a>(words: &[&'a str]) -> Vec<&'a OsStr> {
    words.iter().map(|word| OsStr::new(*word)).collect()
}

fn jax(python: &Path, work: &Path, node: &DemoNode<'_>, stop: &Stop) -> Outcome<ClientRun> {
    let program = work.join("program.py");
    let mut command = node.run(&[python.as_os_str(), program.as_os_str()]);
    command
        .current_dir(work)
        .env("JAX_PLATFORMS", "cpu")
        // By default JAX caches only compilations of at least one second.
        .env("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        .env("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        // JAX puts the path of its side caches, which are for GPUs, into every key. Nodes of a
        // cluster mount at one path; two mounts of one machine cannot.
        .env("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none");
    let (out, err) = succeed(&mut command, COMPILE_WITHIN, stop)?;
    pass_on(node, &err);
    let line = out.lines().last().unwrap_or_default();
    let wrong = || Failure::failed(format!("the program printed something else: {out}"));
    let said: serde_json::Value = serde_json::from_str(line).map_err(|_| wrong())?;
    let number = |key: &str| said[key].as_u64().ok_or_else(wrong);
    Ok(ClientRun {
        seconds: said["seconds"].as_f64().ok_or_else(wrong)?,
        hits: number("hits")?,
        misses: number("misses")?,
        answer: said["answer"].as_str().ok_or_else(wrong)?.to_owned(),
    })
}

fn ccache(compiler: &Path, work: &Path, node: &DemoNode<'_>, stop: &Stop) -> Outcome<ClientRun> {
    let log = work.join(format!("{}.stats", node.name));
    let out = work.join(format!("{}.objects", node.name));
    let failed = |error| Failure::failed(format!("ccache: {error}"));
    std::fs::create_dir_all(&out).map_err(failed)?;
    // One shell for all, so that `hearthfs run` waits for the store only once.
    let script = "out=$1; cc=$2; shift 2; for unit; do ccache \"$cc\" -O2 -c \"$unit.c\" -o \
                  \"$out/$unit.o\" || exit 1; done";
    let names: Vec<String> = (0..SOURCES).map(|n| format!("unit{n}")).collect();
    let mut line = words(&["sh", "-ec", script, "sh"]);
    line.extend([out.as_os_str(), compiler.as_os_str()]);
    line.extend(names.iter().map(OsStr::new));
    let mut command = node.run(&line);
    command.current_dir(work).env("CCACHE_STATSLOG", &log);
    let clock = Clock::system();
    let (_, err) = succeed(&mut command, COMPILE_WITHIN, stop)?;
    let seconds = clock.mono().as_secs_f64();
    pass_on(node, &err);
    let text = std::fs::read_to_string(&log).map_err(failed)?;
    let count = |wanted: &[&str]| text.lines().filter(|line| wanted.contains(line)).count() as u64;
    Ok(ClientRun {
        seconds,
        hits: count(&["direct_cache_hit", "preprocessed_cache_hit"]),
        misses: count(&["cache_miss"]),
        answer: digest_of(&out, &names)?,
    })
}

/// A simple compile cache: an entry is named after its source, is written under a temporary name,
/// and gets its name when it is complete.
const CACHE_SCRIPT: &str = r#"
out=$1; cc=$2; cache=$HEARTHFS_MOUNT/demo; shift 2; mkdir -p "$cache"
for unit; do
  key=$(cksum < "$unit.c" | tr ' ' -)
  if cp "$cache/$key.o" "$out/$unit.o" 2> /dev/null; then echo hit; continue; fi
  "$cc" -O2 -c "$unit.c" -o "$cache/.$key.$$"
  mv "$cache/.$key.$$" "$cache/$key.o"
  cp "$cache/$key.o" "$out/$unit.o"
  echo miss
done"#;

fn cc(compiler: &Path, work: &Path, node: &DemoNode<'_>, stop: &Stop) -> Outcome<ClientRun> {
    let out = work.join(format!("{}.objects", node.name));
    let failed = |error| Failure::failed(format!("cc: {error}"));
    std::fs::create_dir_all(&out).map_err(failed)?;
    let names: Vec<String> = (0..SOURCES).map(|n| format!("unit{n}")).collect();
    let mut line = words(&["sh", "-ec", CACHE_SCRIPT, "sh"]);
    line.extend([out.as_os_str(), compiler.as_os_str()]);
    line.extend(names.iter().map(OsStr::new));
    let mut command = node.run(&line);
    let clock = Clock::system();
    let (said, err) = succeed(command.current_dir(work), COMPILE_WITHIN, stop)?;
    let seconds = clock.mono().as_secs_f64();
    pass_on(node, &err);
    let count = |word: &str| said.lines().filter(|line| *line == word).count() as u64;
    let answer = digest_of(&out, &names)?;
    Ok(ClientRun { seconds, hits: count("hit"), misses: count("miss"), answer })
}

/// Returns the digest of all objects.
fn digest_of(out: &Path, names: &[String]) -> Outcome<String> {
    let mut objects = Vec::new();
    for name in names {
        let object = std::fs::read(out.join(format!("{name}.o")));
        let failed = |error| Failure::failed(format!("read {name}.o: {error}"));
        objects.extend(object.map_err(failed)?);
    }
    Ok(crate::digest::Digest::of(&objects).to_string())
}

fn go(work: &Path, node: &DemoNode<'_>, stop: &Stop) -> Outcome<ClientRun> {
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
    // With -x it prints every command that it runs; packages that it does not compile came from the cache.
    let misses = err.lines().filter(|line| line.contains("/compile ")).count() as u64;
    let mut list = node.run(&words(&["go", "list", "-deps", "."]));
    set(&mut list);
    let (all, _) = succeed(&mut list, COMPILE_WITHIN, stop)?;
    // `unsafe` is a package only in name.
    let packages = all.lines().filter(|line| *line != "unsafe").count() as u64;
    let mut run = std::process::Command::new(&program);
    let (answer, _) = succeed(&mut run, COMPILE_WITHIN, stop)?;
    Ok(ClientRun { seconds, hits: packages.saturating_sub(misses), misses, answer })
}

/// Shows the messages of a client or of `hearthfs run`.
fn pass_on(node: &DemoNode<'_>, text: &str) {
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
