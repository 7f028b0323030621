//! A whole node without a mount: programs against the reference model, and what cannot be made to happen
//! through a kernel.

mod given;
mod guests;
mod kernel;
mod model;
mod node;
mod programs;
mod random;
mod writers;
