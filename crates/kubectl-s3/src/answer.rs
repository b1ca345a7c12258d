//! What the API server answers, or why it does not.

use std::time::Duration;

use contract::text::causes;

/// A list of thousands of objects takes seconds; a server that is away never answers.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);

/// With the API server's own words, and within a time.
pub async fn answer<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match tokio::time::timeout(ANSWER_WITHIN, request).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(kube::Error::Api(status))) => Err(status.message.clone()),
        Ok(Err(error)) => Err(causes(&error)),
        Err(_) => Err(format!("no answer within {} s", ANSWER_WITHIN.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_shown_with_its_causes() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = kube::Error::Service(Box::new(std::io::Error::other(refused)));
        let text = causes(&error);
        assert!(text.contains("connection refused"), "{text}");
        assert_eq!(text.matches("connection refused").count(), 1, "{text}");
    }
}
