//! Several nodes in one process over one store, without a mount.

mod checkpoints;
mod converge;
mod damage;
mod durable;
mod fresh;
mod harness;
mod order;
mod publish;
mod repair;
mod requests;
