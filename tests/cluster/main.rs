//! Whole journeys on a real node.

mod controller;
mod hand_over;
mod object_store;
mod pods;
