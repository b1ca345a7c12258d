//! Waiting with a deadline, and with the last observation when it passes.

use std::fmt::Display;
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// One observation.
pub enum Seen<T> {
    Yes(T),
    NotYet(String),
}

impl<T> Seen<T> {
    /// `Yes` if there is a value, else the observation.
    pub fn some(value: Option<T>, instead: impl Display) -> Self {
        value.map_or_else(|| Self::NotYet(instead.to_string()), Self::Yes)
    }
}

/// Repeats an observation until it succeeds. Panics with the last one when `limit` has passed.
pub async fn eventually<T, F>(what: &str, limit: Duration, look: impl FnMut() -> F) -> T
where
    F: Future<Output = Seen<T>>,
{
    reached(limit, look)
        .await
        .unwrap_or_else(|seen| panic!("{what}: not within {limit:?}; last seen: {seen}"))
}

/// The same, but returns the last observation.
pub async fn reached<T, F>(limit: Duration, mut look: impl FnMut() -> F) -> Result<T, String>
where
    F: Future<Output = Seen<T>>,
{
    let deadline = Instant::now() + limit;
    loop {
        match look().await {
            Seen::Yes(value) => return Ok(value),
            Seen::NotYet(seen) if Instant::now() > deadline => return Err(seen),
            Seen::NotYet(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_looks_until_it_is_so() {
        let mut looks = 0;
        let value = eventually("the third look", Duration::from_secs(5), || {
            looks += 1;
            let seen = if looks == 3 { Seen::Yes(looks) } else { Seen::NotYet(looks.to_string()) };
            std::future::ready(seen)
        });
        assert_eq!(value.await, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "the impossible: not within 1ms; last seen: nothing")]
    async fn it_says_what_it_saw_last() {
        let look = || std::future::ready(Seen::<()>::NotYet("nothing".to_owned()));
        eventually("the impossible", Duration::from_millis(1), look).await;
    }
}
