//! Several nodes in one process over one store, without a mount.

mod absence;
mod age;
mod ages;
mod checkpoints;
mod converge;
mod damage;
mod durable;
mod fresh;
mod gc;
mod harness;
mod lifetimes;
mod missing;
mod moves;
mod order;
mod own;
mod publish;
mod repair;
mod requests;
mod same;
mod touches;
mod trouble;
