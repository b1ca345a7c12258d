//! Whole journeys on a real node.

mod driver;
mod object_store;
mod pods;
