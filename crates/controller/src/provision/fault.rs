//! Why the S3 server did not do what was asked, as a kind and a sentence that names the remedy. The only place that
//! knows what servers say.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::io;

use tonic::Code;

use super::kind::Kind;

/// What is asked of the S3 server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    CreateBucket,
    DeleteBucket,
    ListObjects,
    DeleteObjects,
    ListUploads,
    AbortUpload,
}

impl Operation {
    /// S3's own name for it, which is also what a policy allows (`s3:CreateBucket`).
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CreateBucket => "CreateBucket",
            Self::DeleteBucket => "DeleteBucket",
            Self::ListObjects => "ListBucket",
            Self::DeleteObjects => "DeleteObject",
            Self::ListUploads => "ListBucketMultipartUploads",
            Self::AbortUpload => "AbortMultipartUpload",
        }
    }
}

/// Of what a server says, in bytes: it is kept, logged and put into events.
const LONGEST_SAID: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: Kind,
    operation: Operation,
    bucket: String,
    endpoint: String,
    region: String,
    /// The server's code and words, or what happened to the connection.
    said: String,
}

impl Fault {
    pub(super) fn new(kind: Kind, call: &Call<'_>, mut said: String) -> Self {
        said.truncate(said.floor_char_boundary(LONGEST_SAID));
        Self {
            kind,
            operation: call.operation,
            bucket: call.bucket.to_owned(),
            endpoint: call.endpoint.clone().into_owned(),
            region: call.region.to_owned(),
            said,
        }
    }

    pub(super) fn of_answer(call: &Call<'_>, status: u16, body: &str) -> Self {
        let code = element(body, "Code").unwrap_or_default();
        let message = element(body, "Message").unwrap_or_default();
        let said = if code.is_empty() { format!("HTTP {status}") } else { format!("{code}: {message}") };
        Self::new(Kind::of(status, &code), call, said)
    }

    /// Of the first object that an answer about many says was not deleted: a code without a status.
    pub(super) fn of_object(call: &Call<'_>, page: &str) -> Option<Self> {
        let (_, error) = page.split_once("<Error>")?;
        let part = |name| element(error, name).unwrap_or_default();
        let (key, code, message) = (part("Key"), part("Code"), part("Message"));
        Some(Self::new(Kind::of_object(&code), call, format!("{code}: {message}, for object `{key}`")))
    }

    /// An answer that never came.
    pub(super) fn of_connection(call: &Call<'_>, connecting: bool, error: &(dyn StdError + 'static)) -> Self {
        let mut said = error.to_string();
        let mut cause = Some(error);
        while let Some(error) = cause {
            let text = error.to_string();
            if !said.contains(&text) {
                said = format!("{said}: {text}");
            }
            cause = error.source();
        }
        let kind = match (is_of_tls(error), connecting) {
            (true, _) => Kind::Untrusted,
            (false, true) => Kind::Unreachable,
            (false, false) => Kind::Cut,
        };
        Self::new(kind, call, said)
    }

    /// Whether the request may have had its effect all the same.
    pub fn is_ambiguous(&self) -> bool {
        self.kind.is_ambiguous()
    }

    /// What a caller of the CSI service is told to do about it.
    pub fn code(&self) -> Code {
        self.kind.code()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bucket, endpoint, region, said, operation, .. } = self;
        let action = operation.as_str();
        match self.kind {
            Kind::WrongSecret => write!(
                formatter,
                "{endpoint} says that the secret key does not belong to the access key ({said}), for bucket `{bucket}`: correct \
                 secret_access_key"
            ),
            Kind::UnknownKey => write!(
                formatter,
                "{endpoint} does not know the access key ({said}), for bucket `{bucket}`: correct access_key_id, or create it there"
            ),
            Kind::Expired => write!(
                formatter,
                "the session token is not valid at {endpoint} ({said}), for bucket `{bucket}`: renew the credentials"
            ),
            Kind::Clock => {
                write!(
                    formatter,
                    "the controller's clock differs too much from that of {endpoint} ({said}), for bucket `{bucket}`: set the clock"
                )
            }
            Kind::WrongRegion => write!(
                formatter,
                "{endpoint} does not accept region `{region}` for bucket `{bucket}` ({said}): correct the region of the class, \
                 of the Secret or of the driver"
            ),
            Kind::Denied => write!(
                formatter,
                "{endpoint} denies {action} on bucket `{bucket}` ({said}): allow these credentials s3:{action}"
            ),
            Kind::Taken => write!(
                formatter,
                "bucket `{bucket}` at {endpoint} belongs to another account ({said}): use that account's credentials"
            ),
            Kind::Owned => write!(formatter, "bucket `{bucket}` at {endpoint} exists already ({said})"),
            Kind::BadName => {
                let field = match operation {
                    Operation::CreateBucket => "bucketNamePrefix",
                    _ => "bucketName",
                };
                write!(
                    formatter,
                    "{endpoint} does not take `{bucket}` as the name of a bucket ({said}): correct `{field}`"
                )
            }
            Kind::Full => write!(
                formatter,
                "the account may have no more buckets at {endpoint} than it has ({said}), bucket `{bucket}` is one too many: \
                 raise its limit, or use bucketName with a prefix for each claim"
            ),
            Kind::Missing => write!(
                formatter,
                "there is no bucket `{bucket}` at {endpoint} ({said}): create it, or correct bucketName"
            ),
            Kind::NotEmpty => write!(formatter, "bucket `{bucket}` at {endpoint} is not empty ({said})"),
            Kind::Uploading => {
                write!(formatter, "bucket `{bucket}` at {endpoint} has unfinished uploads ({said})")
            }
            Kind::Busy => {
                write!(
                    formatter,
                    "{endpoint} is too busy for {action} on bucket `{bucket}` ({said}); it is tried again"
                )
            }
            Kind::Broken => {
                write!(
                    formatter,
                    "{endpoint} failed at {action} on bucket `{bucket}` ({said}); it is tried again"
                )
            }
            Kind::Refused => {
                write!(
                    formatter,
                    "{endpoint} refuses {action} on bucket `{bucket}` ({said}): is it an S3 endpoint?"
                )
            }
            Kind::Garbled => write!(
                formatter,
                "{endpoint} answered {action} on bucket `{bucket}` with what S3 never answers ({said}): is it an S3 endpoint?"
            ),
            Kind::Unreachable => write!(
                formatter,
                "{endpoint} cannot be reached for bucket `{bucket}` ({said}): is the S3 server running, and does the network \
                 allow it?"
            ),
            Kind::Untrusted => write!(
                formatter,
                "{endpoint} is not trusted ({said}), for bucket `{bucket}`: give its authority's certificate to the driver \
                 (tls.caCertConfigMap), or correct the endpoint"
            ),
            Kind::Late => write!(
                formatter,
                "{endpoint} did not answer {action} on bucket `{bucket}` ({said}); it is tried again"
            ),
            Kind::Cut => write!(
                formatter,
                "the connection to {endpoint} ended before {action} on bucket `{bucket}` was answered ({said}); it is tried again"
            ),
        }
    }
}

impl StdError for Fault {}

/// Whether it comes from the handshake. The error inside an I/O error is not its source, and there may be several of them
/// around it.
fn is_of_tls(error: &(dyn StdError + 'static)) -> bool {
    if error.is::<rustls::Error>() {
        return true;
    }
    if let Some(inner) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        return is_of_tls(inner);
    }
    error.source().is_some_and(is_of_tls)
}

/// What was asked for, as far as sentences need it.
#[derive(Clone, Debug)]
pub(super) struct Call<'a> {
    pub(super) operation: Operation,
    pub(super) bucket: &'a str,
    pub(super) endpoint: Cow<'a, str>,
    pub(super) region: &'a str,
}

/// The content of the first `<name>` of an answer. Errors of S3 have neither attributes nor nesting there.
pub(super) fn element(page: &str, name: &str) -> Option<String> {
    let (_, rest) = page.split_once(&format!("<{name}>"))?;
    let (content, _) = rest.split_once(&format!("</{name}>"))?;
    Some(content.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&"))
}

#[cfg(test)]
#[path = "fault_tests.rs"]
mod tests;
