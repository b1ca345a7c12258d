use std::io;

use super::*;

const CALL: Call<'_> = Call {
    operation: Operation::CreateBucket,
    bucket: "csi-s3-1",
    endpoint: Cow::Borrowed("http://s3.test"),
    region: "eu",
};

fn answer(status: u16, code: &str) -> S3Error {
    let body =
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>so it is</Message></Error>");
    S3Error::of_response(&CALL, status, &body)
}

#[test]
fn every_answer_has_its_code() {
    for (status, s3, code) in [
        (403, "SignatureDoesNotMatch", Code::Unauthenticated),
        (403, "InvalidAccessKeyId", Code::Unauthenticated),
        (400, "ExpiredToken", Code::Unauthenticated),
        (403, "AccessDenied", Code::PermissionDenied),
        (403, "SomethingNew", Code::PermissionDenied),
        (409, "BucketAlreadyExists", Code::AlreadyExists),
        (400, "TooManyBuckets", Code::ResourceExhausted),
        (400, "AuthorizationHeaderMalformed", Code::InvalidArgument),
        (400, "InvalidBucketName", Code::InvalidArgument),
        (404, "NoSuchBucket", Code::FailedPrecondition),
        (403, "RequestTimeTooSkewed", Code::FailedPrecondition),
        (405, "MethodNotAllowed", Code::FailedPrecondition),
        (409, "MPUinProgress", Code::FailedPrecondition),
        (503, "SlowDown", Code::Unavailable),
        (500, "InternalError", Code::Unavailable),
    ] {
        let error = answer(status, s3);
        assert_eq!(error.code(), code, "{s3}");
        let text = error.to_string();
        for word in ["csi-s3-1", "http://s3.test", s3] {
            assert!(text.contains(word), "{word} is not in: {text}");
        }
    }
    assert!(S3Error::of_response(&CALL, 502, "<html>").to_string().contains("HTTP 502"));
}

#[test]
fn a_server_writes_no_lines_of_its_own_into_logs_and_events() {
    let body = "<Error><Code>AccessDenied</Code><Message>no\nERROR all is lost\u{9b}31m</Message></Error>";
    let text = S3Error::of_response(&CALL, 403, body).to_string();
    assert!(text.contains("no ERROR all is lost") && !text.contains(char::is_control), "{text:?}");
}

#[test]
fn an_object_that_was_not_deleted_has_its_code() {
    let page = |code: &str| {
        format!(
            "<DeleteResult><Deleted><Key>a</Key></Deleted><Error><Key>b&amp;c</Key><Code>{code}</Code>\
             <Message>so it is</Message></Error></DeleteResult>"
        )
    };
    for (code, expected) in [
        ("AccessDenied", Code::PermissionDenied),
        ("InternalError", Code::Unavailable),
        ("SlowDown", Code::Unavailable),
        ("ServiceUnavailable", Code::Unavailable),
        ("InvalidRequest", Code::FailedPrecondition),
        ("", Code::FailedPrecondition),
    ] {
        let error = S3Error::of_object(&CALL, &page(code)).unwrap();
        assert_eq!(error.code(), expected, "{code}");
        assert!(error.to_string().contains(&format!("({code}: so it is, for object `b&c`)")), "{error}");
    }
    assert_eq!(S3Error::of_object(&CALL, "<DeleteResult/>"), None);
}

#[test]
fn only_a_clear_no_is_no_effect() {
    assert!(!answer(403, "AccessDenied").is_ambiguous());
    for (status, code) in [(500, "InternalError"), (503, "SlowDown"), (502, "")] {
        assert!(answer(status, code).is_ambiguous(), "{code}");
    }
    let error = io::Error::from(io::ErrorKind::ConnectionReset);
    assert!(S3Error::of_connection(&CALL, false, &error).is_ambiguous());
    assert!(!S3Error::of_connection(&CALL, true, &error).is_ambiguous(), "nothing was sent");
}

#[test]
fn an_untrusted_certificate_is_recognised() {
    let inner = rustls::Error::General("unknown issuer".to_owned());
    let error = S3Error::of_connection(&CALL, true, &io::Error::other(io::Error::other(inner)));
    assert_eq!((error.kind, error.code()), (ErrorKind::UntrustedCertificate, Code::FailedPrecondition));
}

#[test]
fn a_name_that_the_server_does_not_take_names_its_field() {
    assert!(answer(400, "InvalidBucketName").to_string().contains("correct `bucketNamePrefix`"));
    let list = Call { operation: Operation::ListObjects, ..CALL };
    let page = "<Error><Code>InvalidBucketName</Code></Error>";
    assert!(S3Error::of_response(&list, 400, page).to_string().contains("correct `bucketName`"));
}

#[test]
fn what_a_server_says_is_cut() {
    let page = format!("<Error><Code>Odd</Code><Message>{}</Message></Error>", "ü".repeat(60_000));
    assert!(S3Error::of_response(&CALL, 400, &page).to_string().len() < 2 * LONGEST_DETAIL);
}
