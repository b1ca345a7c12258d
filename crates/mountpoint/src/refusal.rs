//! Why a bucket cannot be served, as a stable code and a message that names the remedy: from the errors of the S3 client.

mod answer;

use contract::text::causes;
use exchange::ExchangeError;
use mounter::deadlines::S3_ANSWER;
use mounter::handover::{Code, Refused};
use mountpoint_s3_client::S3RequestError;
use mountpoint_s3_client::error::{ListObjectsError, ObjectClientError};

use crate::client::ClientError;
use crate::credentials::KeysError;
use crate::diagnose::CORRECT_PROXY;

pub(crate) use answer::RequestedBucket;
use answer::{answered, no_such_bucket, words_of};

type ListError = ObjectClientError<ListObjectsError, S3RequestError>;

/// The failure of the first listing.
pub(crate) fn of_listing(error: &ListError, requested: &RequestedBucket) -> Refused {
    let RequestedBucket { bucket, region, .. } = requested;
    let refused = Refused::new;
    match error {
        // The library keeps only the code.
        ObjectClientError::ServiceError(ListObjectsError::NoSuchBucket) => {
            no_such_bucket("NoSuchBucket", requested)
        }
        ObjectClientError::ClientError(S3RequestError::IncorrectRegion(right, answer)) => refused(
            Code::WrongRegion,
            format!(
                "bucket `{bucket}` is in region `{right}`, not `{region}` ({}): correct the region",
                words_of(answer)
            ),
        ),
        ObjectClientError::ClientError(S3RequestError::NoSigningCredentials) => refused(
            Code::NoCredentials,
            format!("there are no credentials for bucket `{bucket}`: provide them, or use no-sign-request"),
        ),
        ObjectClientError::ClientError(S3RequestError::CrtError(error)) => {
            unconnected(&error.to_string(), requested)
        }
        // The library's own words are left out, because they repeat the answer.
        ObjectClientError::ClientError(S3RequestError::InternalError(_)) => refused(
            Code::Rejected,
            format!(
                "{} did not answer the first request for bucket `{bucket}` with a listing: check that it is an S3 server",
                requested.server()
            ),
        ),
        ObjectClientError::ClientError(S3RequestError::CreateSessionError) => refused(
            Code::Rejected,
            format!(
                "{} refused a session for bucket `{bucket}`: allow s3express:CreateSession",
                requested.server()
            ),
        ),
        ObjectClientError::ClientError(error) => answered(error, requested),
        // No other kind exists in this version of the library.
        ObjectClientError::ServiceError(error) => refused(Code::Rejected, error.to_string()),
    }
}

/// The first listing was not answered in time, and a diagnosis has found nothing.
pub(crate) fn of_silence(requested: &RequestedBucket) -> Refused {
    let (server, limit) = (requested.server(), S3_ANSWER.as_secs());
    let remedy = match requested.proxy {
        Some(_) => "check that the proxy allows the connection and that the server is not overloaded",
        None => "check that it is not overloaded",
    };
    let message = format!(
        "{server} did not answer within {limit} s, or only with temporary errors such as 503: {remedy}"
    );
    Refused::new(Code::TimedOut, message)
}

/// Without an answer the S3 client reports the failed step by the names of its C libraries.
fn unconnected(error: &str, requested: &RequestedBucket) -> Refused {
    let server = requested.server();
    // A name or an address that fails is then the proxy's.
    let or_proxy = |remedy| if requested.proxy.is_some() { CORRECT_PROXY } else { remedy };
    let (code, remedy) = if error.contains("AWS_ERROR_HTTP_PROXY_") {
        (Code::EndpointUnreachable, "check that the proxy allows the connection")
    } else if error.contains("AWS_IO_DNS_") {
        (Code::UnknownHost, or_proxy("correct the endpoint, or the cluster's DNS"))
    } else if error.contains("AWS_IO_TLS_") {
        (Code::UntrustedCertificate, "give its authority's certificate to the driver (tls.caCertConfigMap)")
    } else if error.contains("AWS_IO_SOCKET_") {
        let remedy = "check that it is running and that network policies allow the connection";
        (Code::EndpointUnreachable, or_proxy(remedy))
    } else if error.contains("AWS_ERROR_HTTP_") {
        let remedy = "check that it is an S3 server and that its URL has the right scheme, http or https";
        (Code::EndpointUnreachable, remedy)
    } else {
        (Code::Failed, "see the log of the Mountpoint Pod")
    };
    Refused::new(code, format!("the first request to {server} failed ({error}): {remedy}"))
}

pub(crate) fn of_client(error: &ClientError, requested: &RequestedBucket) -> Refused {
    let code = match error {
        ClientError::Keys(KeysError::Exchange(error)) => match error {
            ExchangeError::Token(_) => Code::NoCredentials,
            ExchangeError::Unreachable { .. } => Code::EndpointUnreachable,
            ExchangeError::Refused { .. } if error.is_expired_token() => Code::ExpiredCredentials,
            ExchangeError::Refused { .. } => Code::AccessDenied,
            ExchangeError::NoKeys { .. } if error.is_transient() => Code::ServerError,
            ExchangeError::NoKeys { .. } => Code::Rejected,
            ExchangeError::Authorities { .. } => Code::BadOption,
        },
        ClientError::Keys(KeysError::Read { .. } | KeysError::Missing { .. } | KeysError::Unusable) => {
            Code::NoCredentials
        }
        ClientError::New(_) => Code::BadOption,
    };
    // The library's message does not contain the cause.
    let message = causes(error);
    Refused::new(code, format!("bucket `{}` at {}: {message}", requested.bucket, requested.endpoint))
}

#[cfg(test)]
mod tests {
    use super::answer::LONGEST_ANSWER;
    use super::*;
    use mountpoint_s3_client::error_metadata::ClientErrorMetadata;

    pub(super) fn requested() -> RequestedBucket {
        RequestedBucket {
            bucket: "b".into(),
            endpoint: "http://s3.test".into(),
            region: "r".into(),
            identity: "role reader".into(),
            proxy: None,
        }
    }

    fn forbidden(code: &str, message: Option<&str>) -> Refused {
        let metadata = ClientErrorMetadata {
            http_code: Some(403),
            error_code: Some(code.into()),
            error_message: message.map(str::to_owned),
        };
        of_listing(
            &ObjectClientError::ClientError(S3RequestError::Forbidden("no".into(), metadata)),
            &requested(),
        )
    }

    #[test]
    fn every_s3_error_has_its_code_and_the_servers_words() {
        for (s3, code) in [
            ("SignatureDoesNotMatch", Code::WrongSecret),
            ("InvalidAccessKeyId", Code::UnknownKey),
            ("ExpiredToken", Code::ExpiredCredentials),
            ("RequestTimeTooSkewed", Code::AccessDenied),
            ("AccessDenied", Code::AccessDenied),
            ("SomethingNew", Code::AccessDenied),
            ("AuthorizationHeaderMalformed", Code::WrongRegion),
            ("InvalidBucketName", Code::BadBucket),
            ("NoSuchBucket", Code::NoSuchBucket),
            ("SlowDown", Code::ServerError),
            ("MPUinProgress", Code::Rejected),
        ] {
            let Refused { code: refused, message } = forbidden(s3, Some("as the server says"));
            assert_eq!(refused, code, "{s3}");
            assert!(message.contains(&format!("{s3}: as the server says")), "{message}");
            let silent = forbidden(s3, None).message;
            assert!(silent.contains(s3) && !silent.contains(&format!("{s3}: a")), "{silent}");
        }
        let message = forbidden("AccessDenied", None).message;
        assert!(message.contains("bucket `b`") && message.contains("allow role reader"), "{message}");
        let long = forbidden("AccessDenied", Some(&"é".repeat(LONGEST_ANSWER))).message;
        assert!(long.ends_with("allow role reader to list it") && long.len() < 2 * LONGEST_ANSWER, "{long}");
        let elsewhere = ClientErrorMetadata {
            http_code: Some(301),
            error_code: Some("PermanentRedirect".into()),
            error_message: Some("use the other endpoint".into()),
        };
        let elsewhere = S3RequestError::IncorrectRegion("eu".into(), elsewhere);
        let message = of_listing(&ObjectClientError::ClientError(elsewhere), &requested()).message;
        assert!(
            message.contains("region `eu`") && message.contains("PermanentRedirect: use the other"),
            "{message}"
        );
        let unknown = ObjectClientError::ServiceError(ListObjectsError::NoSuchBucket);
        assert!(of_listing(&unknown, &requested()).message.contains("(NoSuchBucket)"));
        let none = ObjectClientError::ClientError(S3RequestError::NoSigningCredentials);
        assert_eq!(of_listing(&none, &requested()).code, Code::NoCredentials);
    }

    #[test]
    fn an_answer_that_is_none_of_s3_is_not_a_failure_of_the_driver() {
        for error in [S3RequestError::InternalError("<html/>".into()), S3RequestError::CreateSessionError] {
            let refused = of_listing(&ObjectClientError::ClientError(error), &requested());
            assert_eq!(refused.code, Code::Rejected, "{refused}");
            assert!(!refused.message.contains("html"), "{refused}");
        }
        assert_eq!(
            of_listing(&ObjectClientError::ClientError(S3RequestError::Throttled), &requested()).code,
            Code::ServerError
        );
    }

    #[test]
    fn keys_that_cannot_be_exchanged_are_not_a_failure_of_the_driver() {
        let (server, text) = (|| "http://sts.test".to_owned(), || "text".to_owned());
        let io = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let remedy = "remedy";
        let no_keys = |status| ExchangeError::NoKeys { server: server(), status, remedy };
        let refused = |code: &str| ExchangeError::Refused {
            server: server(),
            wanted: text(),
            code: code.to_owned(),
            message: text(),
            remedy,
        };
        for (error, code) in [
            (ExchangeError::Token(io()), Code::NoCredentials),
            (ExchangeError::Authorities { file: "/ca".into(), source: io() }, Code::BadOption),
            (
                ExchangeError::Unreachable { server: server(), reason: text(), remedy },
                Code::EndpointUnreachable,
            ),
            (refused("AccessDenied"), Code::AccessDenied),
            (refused("ExpiredTokenException"), Code::ExpiredCredentials),
            (no_keys(404), Code::Rejected),
            (no_keys(503), Code::ServerError),
        ] {
            let refused = of_client(&ClientError::Keys(error.into()), &requested());
            assert_eq!(refused.code, code, "{refused}");
        }
    }

    #[test]
    fn a_failed_connection_is_reported_by_its_step() {
        let code = |error: &str| {
            let refused = unconnected(error, &requested());
            assert!(!refused.message.contains('?'), "{refused}");
            refused.code
        };
        assert_eq!(code("aws-c-io: AWS_IO_DNS_QUERY_FAILED, …"), Code::UnknownHost);
        assert_eq!(code("aws-c-io: AWS_IO_TLS_ERROR_NEGOTIATION_FAILURE, …"), Code::UntrustedCertificate);
        assert_eq!(code("aws-c-io: AWS_IO_SOCKET_CONNECTION_REFUSED, …"), Code::EndpointUnreachable);
        assert_eq!(code("aws-c-http: AWS_ERROR_HTTP_PROXY_CONNECT_FAILED, …"), Code::EndpointUnreachable);
        assert_eq!(code("aws-c-http: AWS_ERROR_HTTP_PROTOCOL_ERROR, …"), Code::EndpointUnreachable);
        assert_eq!(code("aws-c-s3: AWS_ERROR_S3_INTERNAL_ERROR, …"), Code::Failed);
        let proxied = RequestedBucket { proxy: Some("http://p:1".into()), ..requested() };
        for error in ["AWS_IO_DNS_INVALID_NAME", "AWS_IO_SOCKET_TIMEOUT"] {
            let message = unconnected(error, &proxied).message;
            assert!(message.contains("http://s3.test through the proxy http://p:1 failed"), "{message}");
            assert!(message.ends_with(CORRECT_PROXY), "{message}");
        }
    }
}
