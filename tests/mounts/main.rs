//! Everything that is tested on real mounts: one file per promise, and what lies across them.
//!
//! Owns the list of suites. Each speaks only of what a program or an operator can see: files through
//! the mount, processes, exit codes, and the objects in the store.

#[path = "../harness/mod.rs"]
mod harness;
#[path = "../stores/mod.rs"]
mod stores;

mod bad_input;
mod bad_objects;
mod beside_ext4;
mod checkpoints;
mod client_dirs;
mod clients;
mod clouds;
mod commands;
mod copies;
mod copy_clients;
mod copy_races;
mod credentials;
mod directory_times;
mod doctor;
mod explain;
mod exports;
mod fallbacks;
mod few_descriptors;
mod figures;
mod fleet;
mod gc;
mod guides;
mod imports;
mod index_loss;
mod inside;
mod kill_points;
mod limits;
mod live_files;
mod lock_files;
mod locks;
mod logins;
mod metrics;
mod moves;
mod p1;
mod p10;
mod p11;
mod p12;
mod p13;
mod p14;
mod p14_attacks;
mod p14_calls;
mod p14_nodes;
mod p14_reopened;
mod p14_stalls;
mod p15;
mod p2;
mod p3;
mod p4;
mod p5;
mod p7;
mod p8;
mod p9;
mod page;
mod place;
mod posix_suites;
mod private;
mod profiles;
mod programs;
mod removals;
mod replays;
mod rules;
mod s3;
mod service_helper;
mod service_notify;
mod service_pods;
mod service_restart;
mod service_systemd;
mod service_units;
mod spoilt;
mod top;
mod unchanged;
mod unit_kills;
mod units;
mod users;
mod visibility;
mod warm;
mod writers;
