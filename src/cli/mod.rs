//! The command line.
//!
//! Owns words, exit statuses and messages. Must never do the daemon's work: it starts a daemon, or
//! sends it requests over the control socket.

mod background;
mod child;
mod clients;
mod configuration;
mod copy;
mod demo;
mod dirs;
mod doctor;
#[cfg(test)]
mod documents;
mod drain;
mod du;
mod escape;
mod explain;
mod export;
mod failure;
mod figures;
mod fuse;
mod gc;
mod helper;
mod import;
mod init;
mod inside;
mod json;
mod lifecycle;
mod logging;
mod ls;
mod mount;
mod options;
mod output;
mod pages;
mod point;
mod profiles;
mod record;
mod rm;
mod run;
mod share;
mod stale;
mod stat;
mod status;
mod store;
mod top;
mod unmount;
mod warm;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use failure::{Failure, Outcome};

use crate::task;

/// One compile cache for a whole cluster, behind an ordinary directory
#[derive(Parser, Debug)]
#[command(name = "hearthfs", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Mount the cache at a directory and serve it until it is unmounted
    Mount(mount::MountCommand),
    /// Run a command with every compile cache on the mount
    Run(run::RunCommand),
    /// Upload what is not yet remote, unmount, and wait until the daemon has ended
    Unmount(unmount::Unmount),
    /// Show what is mounted, its state, and what is not yet remote
    Status(status::StatusCommand),
    /// Wait until everything published so far is remote
    Drain(drain::Drain),
    /// Make a store for the nodes to share; does nothing if there is one
    Init(init::Init),
    /// Let the bucket delete old entries: plan, apply, verify or remove the rule
    #[command(subcommand)]
    Lifecycle(lifecycle::LifecycleCommand),
    /// Check machine, mount, store and clients, and suggest remedies
    Doctor(doctor::Doctor),
    /// Delete from a store what no node needs any longer
    Gc(gc::GcCommand),
    /// Show or check the configuration
    #[command(subcommand)]
    Config(configuration::Config),
    /// Show the profiles of the programs that cache here: their variables and kinds of files
    Profiles(profiles::ProfilesCommand),
    /// Show two nodes on this machine: what one compiles, the other finds
    Demo(demo::Demo),
    /// Copy an existing cache directory to the mount, with its times and as whole units
    Import(import::Import),
    /// Copy what is on the mount to a plain directory
    Export(export::Export),
    /// List what is on a mount: size, age, last use, writing node, client, local or remote
    Ls(ls::LsCommand),
    /// Show everything known about one path on a mount
    Stat(stat::Tell),
    /// Sum up what is on a mount, by directory, client or writing node
    Du(du::DuCommand),
    /// Explain why a name was a miss, and what to do about it
    Explain(explain::Explain),
    /// Watch a mount: rates, hit ratio, backlog, requests, busiest clients and entries
    Top(top::Watch),
    /// Remove from all nodes, after showing a count and asking
    Rm(rm::Remove),
    /// Write a man page for each command
    Man(pages::Pages),
    /// Print a shell script that completes commands and options
    Completions(pages::Completions),
    /// Fetch files before programs ask for them, as far as there is room
    Warm(warm::Warm),
    /// Look at a mount from outside its daemon
    #[command(name = crate::daemon::LOOK, hide = true)]
    LookAt { dir: PathBuf },
    /// Make directories in the root of a mount from outside its daemon; the mode is octal
    #[command(name = crate::daemon::MAKE_DIRS, hide = true)]
    MakeDirsIn { dir: PathBuf, mode: String, names: Vec<String> },
}

const EXIT_STATUS: &str = "\
Exit status:
  0  done
  1  tried and failed
  2  refused: usage, configuration or environment; nothing was changed
  3  not mounted";

const ADDRESSES: &str = "\
Remotes:
  s3://BUCKET[/PREFIX]              any S3 store; credentials, region and endpoint from the AWS
                                    variables, the files in ~/.aws, or the instance
  gs://BUCKET[/PREFIX]              Google Cloud Storage; GOOGLE_APPLICATION_CREDENTIALS, the
                                    credentials of gcloud, or the instance
  az://ACCOUNT/CONTAINER[/PREFIX]   Azure Blob Storage; AZURE_STORAGE_ACCOUNT_KEY, a SAS token or
                                    connection string, an identity, or ~/.azure/config
  file:///DIRECTORY                 a directory that all nodes share
  (none)                            a cache on this node only";

const EXAMPLES: &str = "\
Examples:
  hearthfs run --remote s3://bucket/cache -- python train.py
  hearthfs mount /mnt/cache --remote s3://bucket/cache --background
  hearthfs status /mnt/cache
  hearthfs unmount /mnt/cache";

// Each paragraph is one line: the help is wrapped to the terminal.
const MOUNT_EXAMPLES: &str = "\
Stays in the foreground. On SIGTERM or SIGINT it uploads what is not yet remote, unmounts, and exits 0. On SIGHUP it reopens the \
log and takes over log.level, local.cache_size and writeback.drain_deadline from the configuration. \
The mount point must be an empty directory. A mount that a dead daemon left there is replaced. \
Called as mount.hearthfs, it takes the arguments of mount(8).

Examples:
  hearthfs mount /mnt/cache --remote s3://bucket/cache
  hearthfs mount /mnt/cache --remote file:///nfs/cache --cache-size 200GiB
  hearthfs mount /mnt/cache --remote s3://bucket --set remote.endpoint=http://localhost:9000";

const STATUS_NOTES: &str = "\
Examples:
  hearthfs status
  hearthfs status /mnt/cache --json | jq .backlog.records";

const DRAIN_NOTES: &str = "\
Exits 1 if the time runs out first. Nothing is lost then, and the mount continues to upload.

Example:
  hearthfs drain /mnt/cache --timeout 5m && shutdown -h now";

const INIT_NOTES: &str = "\
Makes the prefix or directory a store, with an identity that nodes remember in their cache directories, and checks \
what the store can do. The first mount of a node that knows no store makes one, too. A node that knows a store accepts no \
other in its place. If the place is empty or holds another store, because a share is not mounted, a bucket was emptied or an address is wrong, \
the node keeps what it knows and its pending changes, works on its own disk, and continues when the store is back. \
It moves to another store in two cases: remote.url is changed and there is a store at the new address, or `hearthfs init` of the other store named the store that the node knows \
with --replaces (`hearthfs status` shows its identity). Its pending changes go to the new store. \
The directory of a file:// address is made, but not the one above it.

Examples:
  hearthfs init s3://bucket/cache --expiry 14d
  hearthfs init file:///nfs/cache
  hearthfs init s3://bucket/cache --replaces 9c41d2a07be83f15";

const GC_NOTES: &str = "\
Works on the store alone, from any machine, while nodes are mounted. It deletes what is past the expiry (for \
stores without a lifecycle rule, such as a shared directory), and what no rule can find: commits that are in a \
checkpoint, and packs and blobs that no entry uses, once they are older than an hour. The expiry is the one that \
the store declares. A shorter one from --expiry or the configuration takes precedence, with a warning. If the store declares none, \
the one from --expiry or the configuration applies. Objects that are not hearthfs's are counted and left alone. Exits 1 if something could not be deleted; running it again is safe.

Examples:
  hearthfs gc file:///nfs/cache --dry-run
  hearthfs gc s3://bucket/cache --json | jq .deleted";

const DOCTOR_NOTES: &str = "\
Checks the kernel, /dev/fuse and the disk, the mount point and the directories above it, the store, and the variables and versions of the clients, \
with or without a mount. If there is a mount, it asks the daemon, too, and checks the settings that the daemon uses. Each check is ok, a warning, a problem or skipped. \
Exits 1 if there is a problem; warnings do not count. It prints no secrets. It waits at most 5 s for the version of a program, and as root runs no program for another user.

It tests the rights on the store: it writes, reads and deletes an object in `probes` below the prefix. With mount.writes = \
\"private\" or \"none\" it writes nothing. The credentials are those of this process; a daemon has its own environment. It makes no store.

--json prints one object: version (of this form, 1), hearthfs, mount_point, remote, problems, warnings, and checks, a list of theme, name, \
result, found and remedy.

Examples:
  hearthfs doctor
  hearthfs doctor /mnt/cache --config /etc/hearthfs/cluster.toml
  hearthfs doctor --json | jq -r '.checks[] | select(.result == \"problem\") | .found'";

const CONFIG_NOTES: &str = "\
`check --connect` also checks the store, as `hearthfs doctor` does but without writing, and exits 1 if the store cannot be used.";

const PROFILES_NOTES: &str = "\
The profiles that come with hearthfs, and those that tables [profiles.NAME] of the configuration add or replace. docs/clients.md \
describes those that come with hearthfs in detail.

Examples:
  hearthfs profiles
  hearthfs profiles ccache
  hearthfs profiles --json | jq '.profiles[].variables'";

const DEMO_NOTES: &str = "\
Mounts two nodes over one shared directory, compiles on the first, and again in a fresh process on the second, which should \
find everything in the cache. With JAX it makes a Python environment once, below ~/.cache/hearthfs (150 MB to download). \
If that is not possible, it uses ccache, Go, or a C compiler with a cache of a few lines of shell. Everything else is in a \
temporary directory, which is removed at the end, as are the mounts and daemons. \
Exits 0 if the second node compiled nothing, 1 if it did or something failed, 2 if something is missing.

Examples:
  hearthfs demo
  hearthfs demo --client cc --keep";

const IMPORT_NOTES: &str = "\
Copies what is below SRC to DIR on the mount, with modes and times, and as root with owners. Symbolic links stay links; \
hard links become separate files. Files that only make sense together (a Triton kernel, numba's index and data) appear \
together, each unit when it is complete. Files that a client's profile calls temporary, node-local or a lock are left out, \
and so are incomplete units. The path on the mount determines which profile applies. \
A file that is already there with the same size and time is left as it is, so an interrupted import can be run \
again. A file that differs is kept, and so is a unit that is already complete, unless --overwrite is given; the unit is then a miss \
for a moment. If a unit is replaced in SRC meanwhile, its copy starts again. Imports by one user to one mount take turns. \
Prints for each client the conditions under which its entries are found. \
Exits 1 if something could not be imported, and names it; --drain still waits for the rest.

Examples:
  hearthfs import ~/.triton/cache /mnt/cache/triton
  hearthfs import /nfs/old-cache /mnt/cache --dry-run --json | jq .left_out
  hearthfs import /var/tmp/neuron-compile-cache /mnt/cache/neuron --drain=30m";

const EXPORT_NOTES: &str = "\
Copies what is visible below DIR to DEST, a plain directory, with modes and times, and as root with owners. Each file gets its name when it is \
completely written. Of a unit one version is written, and the file that its readers open first comes last. Files that a \
client's profile calls temporary, node-local or a lock are left out. A file that is already there with the same size and time \
is left as it is. A file that differs is kept, even if it appeared meanwhile, unless --overwrite is given. Until they are complete, only you can \
enter the new directories. What cannot be read, such as an entry that is not on this node \
while the store is down, is counted and named, and the exit status is 1. A file whose name begins with .hearthfs-export. was left \
by an export that was killed.
A GLOB is a path relative to DIR, as in profiles: * matches any bytes in a name, ? one byte, **/ in front any directories, /** at the end \
everything below. A directory that matches is copied with everything below it. If nothing matches a GLOB, it is named and the exit status is 1; \
what matches the others is copied.

Examples:
  hearthfs export /mnt/cache /backup/cache
  hearthfs export /mnt/cache/triton '**/*.cubin' /tmp/kernels
  hearthfs export /mnt/cache jax numba /backup/cache --json | jq .files";

const GLOBS: &str = "\
A GLOB is a path, or a pattern of paths: * matches any bytes in a name, ? one byte, and the name ** any directories, or at the end all \
names below. Quote a GLOB, so that the shell does not expand it. \
If there is something with exactly the name as typed, the GLOB means that. \
Printed names have \\n, \\t, \\r, \\xHH (a byte) and \\u{H} (a character) for what a terminal would not show as it is, and \\\\ for a backslash. \
They can be typed in this form, too. A backslash before any other character removes its special meaning.";

const LS_NOTES: &str = "\
Lists names as `ls` does, in no particular order, and only those that the kernel lets you see. A directory without a wildcard stands for the names \
in it. Nothing is fetched, and nothing counts as used.

Columns of -l; a dash means unknown, such as all but the size of a file that you may not read:
  SIZE      bytes of a file
  AGE       time since it was written, on any node, by the store's clock
  LAST USE  time since its content was last opened, written or fetched on this node, in steps of
            ten minutes; a dash if its bytes are not on this node. Opens on other nodes do not
            count. Files with the same content share this time, so only root and the user of
            the mount see it
  NODE      the node that wrote it: `here`, or its identity
  CLIENT    the profile of the directory that it is in (`hearthfs profiles`)
  BYTES     `local` on this node, `remote` in the store only, `writing` while they are written

--json prints one object per line: path, path_hex if the path is not text, type, size, mode, uid, gid, links, mtime_s, now_ms, node, own, shared, written_ms, client, \
kind (from its profile), is_entry, bytes, digest, and content with used_s, stored_ms and expires_ms. Unknown fields are left out.";

const LS_EXAMPLES: &str = "\
Examples:
  hearthfs ls -l /mnt/cache
  hearthfs ls -l '/mnt/cache/triton/**/*.cubin'
  hearthfs ls --json '/mnt/cache/**' | jq -r 'select(.bytes == \"remote\").path'";

const STAT_NOTES: &str = "\
Shows what the columns of `hearthfs ls -l` show (see its help), and more: owner and mode, when the content was last stored, when it expires if it is not \
opened before, and its digest. Files with the same content share the times of use, storing and expiry, so only root and the user of the \
mount see them. Nothing is fetched, and nothing counts as used. --json prints one object with the fields of `ls --json`.

Examples:
  hearthfs stat /mnt/cache/jax/jit_step-0123-cache
  hearthfs stat --json /mnt/cache/triton/KEY/kernel.cubin | jq -r .node";

const DU_NOTES: &str = "\
Sums up regular files, for a directory all files below it: their bytes, how many of these bytes are on this node (LOCAL), and the number of files, the largest first. Hard links count once. Files that you may not read count as \
not local; `untold` of --json is the number of these files. Content that several files share counts for each file: `hearthfs status` shows how much the \
cache directory holds. Nothing is fetched, and nothing counts as used. There are at most 10,000 rows; files without a row count as (others).";

const DU_EXAMPLES: &str = "\
Examples:
  hearthfs du /mnt/cache
  hearthfs du --by client /mnt/cache
  hearthfs du --by node '/mnt/cache/**/*.cubin' --json | jq .total";

const EXPLAIN_NOTES: &str = "\
Explains why a program that opens a path now does not find it: no node has published it, it was removed (when, and by which node), it is past its age, \
its bytes are not here and the store cannot be used, its bytes are damaged, it had not arrived yet, a file or the mode bits are in the way, or it is there. If the \
client's names identify the program, it names entries of the same program under other keys. It asks the store for news once. It does not open the path.

--last lists your own last misses, --client NAME those of one client, each with the reason known at that time. The daemon remembers the last 1,024. \
While the kernel remembers a miss, it does not ask the daemon again. Root and the user of the mount see everything; other users see what the mode bits of the directories let \
them list. A name can be typed as it is printed: a backslash begins an escape.

--json prints one object: version (of this form, 1), path, reason, why, remedy and what is known; for a list, misses with these fields, and more.

Examples:
  hearthfs explain /mnt/cache/jax/jit_step-0123abcd-cache
  hearthfs explain --last
  hearthfs explain --client jax -n 100 --json /mnt/cache | jq -r '.misses[].path'";

const TOP_NOTES: &str = "\
Shows a page that is updated at each interval; q, Esc or Ctrl-C ends it. Hits are opens that got an entry. Misses are lookups of names that \
no node has; while the kernel remembers a miss, it does not ask again. The daemon counts clients and entries only while `top` runs. The opens of \
an entry are those since then, and older ones count less. Only root and the user of the mount may use it. Without a terminal it prints one page as text, \
for one interval. There are no colours if NO_COLOR is set.

Examples:
  hearthfs top /mnt/cache
  hearthfs top /mnt/cache --json -n 60 | jq -c '[.hits, .misses, .backlog.records]'";

const RM_NOTES: &str = "\
Counts what matches, prints the count, and asks. Then it removes it as `rm` by the same user would: what that user may not remove stays, and the exit status is 1. \
A directory that matches is removed with everything below it. Links are removed and not followed; file systems mounted below stay. Of files that only make sense together (a \
Triton kernel, numba's index and data) the one that readers open first is removed first, so no reader finds a unit with missing files. Name the directory of \
such a unit rather than single files in it. Programs keep the files that they have open. Other nodes miss a removed entry once the change has reached the store and them. \
What a program writes again meanwhile, here or elsewhere, stays. Without a terminal to ask on it refuses, unless --yes is given. \
If nothing matches, it says so and exits 0; a path without a wildcard that does not exist is an error.";

const RM_EXAMPLES: &str = "\
Examples:
  hearthfs rm /mnt/cache/triton/KEY
  hearthfs rm --dry-run '/mnt/cache/**/*.cubin'
  hearthfs rm --yes '/mnt/cache/ccache/**' && hearthfs drain /mnt/cache
  hearthfs rm '/mnt/cache/*/**'     # everything but the directories of the clients";

const UNMOUNT_NOTES: &str = "\
Exits 1 if not everything could be uploaded in time. The rest is then kept in the cache directory, and \
the next mount with that directory continues. It exits 1, too, if the daemon is dead and changes may not be in the store yet: it removes the mount, and says \
how many there are, if the cache directory is known. With `--now` both exit 0. `--stale` is for service managers: it removes \
a dead mount, if there is one, and succeeds if nothing is mounted. Root can do this for the mounts of all users.

Examples:
  hearthfs unmount /mnt/cache
  hearthfs unmount /mnt/cache --now";

const LIFECYCLE_NOTES: &str = "\
Entries live for expiry.age after their bytes were stored. Then a rule of the bucket deletes them. \
The rule is written with the store's own API. Other rules of the bucket stay as they are. The rule covers only \
what hearthfs keeps below its prefix, except hearthfs.json. `plan` prints the rule to stdout and notes \
to stderr. `apply` twice is the same as once. `verify` exits 1 and names each difference, with both numbers. \
A directory has no rules: run `hearthfs gc` instead. The keys of an Azure storage account cannot change its \
rules: `plan` prints the policy and the commands, and `apply` updates hearthfs.json and exits 1, \
because you still have to set the policy. Without --expiry or expiry.age of the configuration, the expiry that the store declares applies. \
To shorten the expiry, set it on all nodes and mount them again before `apply`. Mounted nodes notice the change only \
within ten minutes of use, and until then can miss entries that the rule has deleted.

Permissions in addition to those of a mount:
  s3://  s3:GetLifecycleConfiguration, s3:PutLifecycleConfiguration, s3:GetBucketVersioning
  gs://  storage.buckets.get, storage.buckets.update

Examples:
  hearthfs lifecycle plan s3://bucket/cache
  hearthfs lifecycle apply s3://bucket/cache --expiry 14d
  hearthfs lifecycle verify gs://bucket/cache --config /etc/hearthfs/cache.toml
  hearthfs lifecycle remove s3://bucket/cache";

const RUN_NOTES: &str = "\
Mounts at DIR if nothing is mounted there, or else joins that mount. Several runs share one mount, and the \
last one unmounts it if a run mounted it. Signals go to the command, and its exit status is returned. If the command \
cannot be found, the status is 127; if it cannot be executed, 126. At the end it waits until everything is \
remote (at most writeback.drain_deadline, and no longer once the store is known to be down) and prints four lines of figures to stderr: what was served locally, fetched and compiled, and the time saved.

Some clients store absolute paths in their entries: DIR should be the same on all nodes.

Variables that are set for the command, unless you have set them; one that leads to another hearthfs mount is set all the same:
";

/// Parses the arguments, runs the command, and returns its exit status. Called as `mount.hearthfs`,
/// it behaves as mount(8) expects.
pub fn main() -> ExitCode {
    demo::end_with_demo();
    let mut args = std::env::args_os();
    if helper::is_called_as(args.next().as_deref()) {
        return helper::main(args);
    }
    let matches = command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match dispatch(&cli.command) {
        Ok(status) => status,
        Err(failure) => {
            // If stderr is gone, nothing can be reported.
            std::io::stderr().lock().write_all(failure.text().as_bytes()).ok();
            ExitCode::from(failure.exit as u8)
        }
    }
}

fn dispatch(command: &Command) -> Outcome<ExitCode> {
    match command {
        Command::Mount(command) => mount::run(command),
        Command::Run(command) => return run::run(command),
        Command::Unmount(command) => unmount::run(command),
        Command::Status(command) => status::run(command),
        Command::Drain(command) => drain::run(command),
        Command::Init(command) => init::run(command),
        Command::Lifecycle(command) => lifecycle::run(command),
        Command::Gc(command) => gc::run(command),
        Command::Doctor(command) => return doctor::run(command),
        Command::Config(command) => configuration::run(command),
        Command::Profiles(command) => profiles::run(command),
        Command::Demo(command) => return demo::run(command),
        Command::Import(command) => import::run(command),
        Command::Export(command) => export::run(command),
        Command::Ls(command) => ls::run(command),
        Command::Stat(command) => stat::run(command),
        Command::Du(command) => du::run(command),
        Command::Explain(command) => explain::run(command),
        Command::Rm(command) => rm::run(command),
        Command::Warm(command) => warm::run(command),
        Command::Top(command) => top::run(command),
        Command::Man(pages) => pages::man(pages, self::command()),
        Command::Completions(completions) => pages::completions(completions, &self::command()),
        Command::LookAt { dir } => {
            background::take_name();
            return Ok(ExitCode::from(crate::daemon::look_at(dir) as u8));
        }
        Command::MakeDirsIn { dir, mode, names } => {
            background::take_name();
            let mode = u32::from_str_radix(mode, 8)
                .map_err(|error| Failure::refused(format!("the mode {mode}: {error}")))?;
            let problems = crate::daemon::make_dirs(dir, mode, names);
            for problem in &problems {
                output::note(problem);
            }
            return Ok(ExitCode::from(u8::from(!problems.is_empty())));
        }
    }
    .map(|()| ExitCode::SUCCESS)
}

/// Returns the tree of commands with its help texts.
fn command() -> clap::Command {
    let run_notes = format!(
        "{RUN_NOTES}{}\nVariables that you have set are left alone, and so is CCACHE_DIR if you set a second level (CCACHE_REMOTE_STORAGE).\nHEARTHFS_MOUNT is set to DIR, so that a run inside the command joins the same mount.\n\n\
         Examples:\n  hearthfs run -- make -j8\n  hearthfs run --mount /mnt/cache -- python train.py",
        clients::help()
    );
    let variables = variables();
    Cli::command()
        .after_help(format!("{EXAMPLES}\n\n{EXIT_STATUS}"))
        .after_long_help(format!("{EXAMPLES}\n\n{ADDRESSES}\n\n{variables}\n{EXIT_STATUS}"))
        .mut_subcommand("mount", |c| c.after_help(format!("{MOUNT_EXAMPLES}\n\n{ADDRESSES}")))
        .mut_subcommand("run", |c| c.after_help(run_notes))
        .mut_subcommand("status", |c| c.after_help(STATUS_NOTES))
        .mut_subcommand("drain", |c| c.after_help(DRAIN_NOTES))
        .mut_subcommand("init", |c| c.after_help(format!("{INIT_NOTES}\n\n{ADDRESSES}")))
        .mut_subcommand("gc", |c| c.after_help(GC_NOTES))
        .mut_subcommand("unmount", |c| c.after_help(UNMOUNT_NOTES))
        .mut_subcommand("doctor", |c| c.after_help(format!("{DOCTOR_NOTES}\n\n{ADDRESSES}")))
        .mut_subcommand("config", |c| c.after_help(CONFIG_NOTES))
        .mut_subcommand("profiles", |c| c.after_help(PROFILES_NOTES))
        .mut_subcommand("demo", |c| c.after_help(DEMO_NOTES))
        .mut_subcommand("import", |c| c.after_help(IMPORT_NOTES))
        .mut_subcommand("export", |c| c.after_help(EXPORT_NOTES))
        .mut_subcommand("ls", |c| c.after_help(format!("{LS_NOTES}\n\n{GLOBS}\n\n{LS_EXAMPLES}")))
        .mut_subcommand("stat", |c| c.after_help(STAT_NOTES))
        .mut_subcommand("du", |c| c.after_help(format!("{DU_NOTES}\n\n{GLOBS}\n\n{DU_EXAMPLES}")))
        .mut_subcommand("explain", |c| c.after_help(EXPLAIN_NOTES))
        .mut_subcommand("top", |c| c.after_help(TOP_NOTES))
        .mut_subcommand("rm", |c| c.after_help(format!("{RM_NOTES}\n\n{GLOBS}\n\n{RM_EXAMPLES}")))
        .mut_subcommand("warm", |c| c.after_help(format!("{}\n\n{GLOBS}", warm::NOTES)))
        .mut_subcommand("lifecycle", |c| c.after_help(LIFECYCLE_NOTES))
}

/// Writes the table of environment variables for the help text.
fn variables() -> String {
    let mut text =
        "Environment (flags take precedence over it, and it over the configuration file):\n"
            .to_owned();
    let mut row = |name: &str, about: &str| {
        text.extend([format!("  {name:<24} {about}\n")]);
    };
    for key in crate::config::KEYS {
        if let Some(variable) = key.variable {
            row(variable, key.name);
        }
    }
    row("HEARTHFS_CONFIG", "the configuration file");
    row("HEARTHFS_RUNTIME_DIR", "the directory of the control sockets");
    text
}

/// Runs the asynchronous part of a command.
fn wait<T>(work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("start the runtime: {error}")))?;
    task::block_on(&runtime, work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_commands_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn help_says_what_there_is() {
        let help = command().render_long_help().to_string();
        for word in [
            "mount",
            "run",
            "unmount",
            "status",
            "drain",
            "lifecycle",
            "config",
            "gc",
            "doctor",
            "profiles",
            "import",
            "export",
            "ls",
            "stat",
            "du",
            "explain",
            "top",
            "rm",
            "init",
            "s3://BUCKET",
            "gs://BUCKET",
            "az://ACCOUNT/CONTAINER",
            "Exit status",
            "HEARTHFS_REMOTE",
            "HEARTHFS_RUNTIME_DIR",
            "Examples",
        ] {
            assert!(help.contains(word), "`{word}` is not in:\n{help}");
        }
        let mut tree = command();
        let run =
            tree.find_subcommand_mut("run").expect("a subcommand").render_long_help().to_string();
        // It is wrapped.
        let run = run.split_whitespace().collect::<Vec<_>>().join(" ");
        let figures = "four lines of figures";
        for word in ["TRITON_CACHE_DIR", "HEARTHFS_MOUNT", "127", "--cache-size", figures] {
            assert!(run.contains(word), "`{word}` is not in:\n{run}");
        }
        let mount =
            tree.find_subcommand_mut("mount").expect("a subcommand").render_long_help().to_string();
        assert!(mount.contains("--background") && !mount.contains("--detached"), "{mount}");
    }
}
