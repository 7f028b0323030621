//! Several nodes in one process over one store, without a mount.

mod absence;
mod age;
mod ages;
mod bundles;
mod checkpoints;
mod converge;
mod damage;
mod durable;
mod fresh;
mod gc;
mod harness;
mod history;
mod lifetimes;
mod missing;
mod moves;
mod older;
mod order;
mod own;
mod pace;
mod publish;
mod repair;
mod requests;
mod same;
mod sweep;
mod touches;
mod trouble;
