//! A whole node without a mount: programs against the reference model, and what cannot be made to happen
//! through a kernel.

mod arrivals;
mod beside;
mod calls;
mod closed;
mod faults;
mod found;
mod given;
mod kernel;
mod left;
mod listed;
mod locked;
mod mapped;
mod model;
mod node;
mod order;
mod overtaken;
mod programs;
mod random;
mod refused;
mod scenes;
mod sent_back;
mod told;
mod unit_cases;
mod unit_random;
mod unit_users;
mod units;
mod users;
mod versions;
mod world;
mod writers;
