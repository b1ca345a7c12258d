//! Keys that requests are signed with: of a credentials file, and as the library takes them.

use contract::keys::Keys;
use mountpoint_s3_client::config::{
    Allocator, CredentialsProvider, CredentialsProviderStaticOptions, S3ClientAuthConfig,
};
use secrecy::ExposeSecret;

/// From the text of a credentials file: sections in brackets, `key = value`.
pub(crate) fn parse(text: &str, profile: &str) -> Option<Keys> {
    let mut inside = false;
    let (mut access_key_id, mut secret_access_key, mut session_token) = (None, None, None);
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            let section = section.trim();
            inside = section.strip_prefix("profile ").unwrap_or(section).trim() == profile;
        } else if inside && let Some((key, value)) = line.split_once('=') {
            let value = Some(value.trim()).filter(|value| !value.is_empty());
            match key.trim() {
                "aws_access_key_id" => access_key_id = value,
                "aws_secret_access_key" => secret_access_key = value,
                "aws_session_token" => session_token = value,
                _ => {}
            }
        }
    }
    Some(Keys {
        access_key_id: access_key_id?.to_owned(),
        secret_access_key: secret_access_key?.into(),
        session_token: session_token.map(Into::into),
        expires: None,
    })
}

/// `None` if the library does not accept them.
pub(crate) fn provider(keys: &Keys) -> Option<S3ClientAuthConfig> {
    let options = CredentialsProviderStaticOptions {
        access_key_id: &keys.access_key_id,
        secret_access_key: keys.secret_access_key.expose_secret(),
        session_token: keys.session_token.as_ref().map(ExposeSecret::expose_secret),
    };
    let provider = CredentialsProvider::new_static(&Allocator::default(), options);
    provider.ok().map(S3ClientAuthConfig::Provider)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# ours\n[other]\naws_access_key_id=NO\naws_secret_access_key=NO\n\n[profile mine]\n \
                        aws_access_key_id = AKIA \naws_secret_access_key=se=cret\n[half]\naws_access_key_id=A\n";

    #[test]
    fn keys_are_read_from_their_profile() {
        let keys = parse(FILE, "mine").unwrap();
        assert_eq!(
            (keys.access_key_id.as_str(), keys.secret_access_key.expose_secret()),
            ("AKIA", "se=cret")
        );
        assert!(keys.session_token.is_none());
        assert!(parse(FILE, "half").is_none() && parse(FILE, "none").is_none());
        let token = "[default]\naws_access_key_id=A\naws_secret_access_key=S\naws_session_token=T\n";
        assert_eq!(parse(token, "default").unwrap().session_token.unwrap().expose_secret(), "T");
    }
}
