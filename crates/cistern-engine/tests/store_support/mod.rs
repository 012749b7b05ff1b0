//! What the store tests share: environments, a server that says what it is told.

#![allow(dead_code, unused_imports)] // each test binary uses a part

mod own_time;
pub mod passing;
pub mod scripted;

pub use own_time::{env_put_forward, hurried_env, jumping_env, real_env};
