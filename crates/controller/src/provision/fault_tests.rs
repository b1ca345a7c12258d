use super::*;

const CALL: Call<'_> = Call {
    operation: Operation::CreateBucket,
    bucket: "csi-s3-1",
    endpoint: Cow::Borrowed("http://s3.test"),
    region: "eu",
};

fn answered(status: u16, code: &str) -> Fault {
    let body = format!("<?xml?><Error><Code>{code}</Code><Message>so it is</Message></Error>");
    Fault::of_answer(&CALL, status, &body)
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
        let fault = answered(status, s3);
        assert_eq!(fault.code(), code, "{s3}");
        let told = fault.to_string();
        for word in ["csi-s3-1", "http://s3.test", s3] {
            assert!(told.contains(word), "{word} is not in: {told}");
        }
    }
    assert!(Fault::of_answer(&CALL, 502, "<html>").to_string().contains("HTTP 502"));
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
        let fault = Fault::of_object(&CALL, &page(code)).unwrap();
        assert_eq!(fault.code(), expected, "{code}");
        assert!(fault.to_string().contains(&format!("({code}: so it is, for object `b&c`)")), "{fault}");
    }
    assert_eq!(Fault::of_object(&CALL, "<DeleteResult/>"), None);
}

#[test]
fn only_a_clear_no_is_no_effect() {
    assert!(!answered(403, "AccessDenied").is_ambiguous());
    for (status, code) in [(500, "InternalError"), (503, "SlowDown"), (502, "")] {
        assert!(answered(status, code).is_ambiguous(), "{code}");
    }
    let error = io::Error::from(io::ErrorKind::ConnectionReset);
    assert!(Fault::of_connection(&CALL, false, &error).is_ambiguous());
    assert!(!Fault::of_connection(&CALL, true, &error).is_ambiguous(), "nothing was sent");
}

#[test]
fn an_untrusted_certificate_is_told_apart() {
    let inner = rustls::Error::General("unknown issuer".to_owned());
    let fault = Fault::of_connection(&CALL, true, &io::Error::other(io::Error::other(inner)));
    assert_eq!((fault.kind, fault.code()), (Kind::Untrusted, Code::FailedPrecondition));
}

#[test]
fn a_name_that_the_server_does_not_take_names_its_field() {
    assert!(answered(400, "InvalidBucketName").to_string().contains("correct `bucketNamePrefix`"));
    let list = Call { operation: Operation::ListObjects, ..CALL };
    let page = "<Error><Code>InvalidBucketName</Code></Error>";
    assert!(Fault::of_answer(&list, 400, page).to_string().contains("correct `bucketName`"));
}

#[test]
fn what_a_server_says_is_cut() {
    let page = format!("<Error><Code>Odd</Code><Message>{}</Message></Error>", "ü".repeat(60_000));
    assert!(Fault::of_answer(&CALL, 400, &page).to_string().len() < 2 * LONGEST_SAID);
}
