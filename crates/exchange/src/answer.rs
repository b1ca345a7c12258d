//! Temporary keys in the answers of the servers that give them.

use std::time::SystemTime;

use contract::keys::Keys;
use serde::Deserialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Of STS. `None` unless all of it is there.
pub(crate) fn xml_keys(body: &str) -> Option<Keys> {
    Some(Keys {
        access_key_id: element(body, "AccessKeyId")?,
        secret_access_key: element(body, "SecretAccessKey")?.into(),
        session_token: Some(element(body, "SessionToken")?.into()),
        expires: Some(moment(&element(body, "Expiration")?)?),
    })
}

/// Of an agent or of the metadata service.
pub(crate) fn json_keys(body: &str) -> Option<Keys> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answer {
        access_key_id: String,
        secret_access_key: String,
        token: String,
        expiration: String,
    }
    let answer: Answer = serde_json::from_str(body).ok()?;
    Some(Keys {
        access_key_id: answer.access_key_id,
        secret_access_key: answer.secret_access_key.into(),
        session_token: Some(answer.token).filter(|token| !token.is_empty()).map(Into::into),
        expires: Some(moment(&answer.expiration)?),
    })
}

/// Code and message of an agent's failure: `[request]: (Code): message, fault: client`.
pub(crate) fn of_agent(body: &str) -> Option<(String, String)> {
    let (code, message) = body.split_once('(')?.1.split_once("): ")?;
    let message = message.trim().trim_end_matches(", fault: client");
    code.chars().all(char::is_alphanumeric).then(|| (code.to_owned(), message.to_owned()))
}

fn moment(text: &str) -> Option<SystemTime> {
    OffsetDateTime::parse(text, &Rfc3339).ok().map(SystemTime::from)
}

/// The content of the first element of this name, which none of STS's answers has inside of another meaning.
pub(crate) fn element(page: &str, name: &str) -> Option<String> {
    let (_, rest) = page.split_once(&format!("<{name}>"))?;
    let (content, _) = rest.split_once(&format!("</{name}>"))?;
    let mut text = content.trim().to_owned();
    // `&amp;` last, or `&amp;lt;` would become `<`.
    for (entity, character) in
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#34;", "\""), ("&apos;", "'"), ("&#39;", "'")]
    {
        text = text.replace(entity, character);
    }
    Some(text.replace("&amp;", "&"))
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    const XML: &str = "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
        <AccessKeyId>ASIA</AccessKeyId><SecretAccessKey>a/b+c</SecretAccessKey><SessionToken>t&amp;t=</SessionToken>\
        <Expiration>2030-01-02T03:04:05Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>\
        </AssumeRoleWithWebIdentityResponse>";

    #[test]
    fn agents_say_why_they_refuse() {
        let said = |code: &str, message: &str| Some((code.to_owned(), message.to_owned()));
        let body = "[1-a]: (ExpiredTokenException): Token expired, fault: client\n";
        assert_eq!(of_agent(body), said("ExpiredTokenException", "Token expired"));
        for other in ["", "Service account token cannot be empty", "not (a code): no"] {
            assert_eq!(of_agent(other), None, "{other}");
        }
    }

    #[test]
    fn keys_are_complete_or_none() {
        let keys = xml_keys(XML).unwrap();
        assert_eq!(keys.session_token.unwrap().expose_secret(), "t&t=");
        assert_eq!(keys.expires, moment("2030-01-02T03:04:05.000Z"));
        assert!(xml_keys(&XML.replace("SessionToken", "Other")).is_none());
        assert!(xml_keys(&XML.replace("2030-01-02T03:04:05Z", "soon")).is_none());
        assert!(json_keys("{}").is_none() && json_keys("no").is_none());
    }
}
