//! Whole journeys on a real node.

mod hand_over;
mod object_store;
mod pods;
