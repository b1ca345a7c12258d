//! Where object data is cached on the node.

use super::attributes::{VolumeError, attribute, parse_quantity};
use crate::arguments::Arguments;
use crate::names::CACHE_IN_POD;
use crate::options::MountOption;
use crate::quantity::Quantity;

/// How much of a limited cache is used: the file system needs the rest, and the kubelet evicts a pod that exceeds its limit.
const CACHE_SHARE_PERCENT: u128 = 95;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    #[default]
    None,
    EmptyDir {
        size_limit: Option<Quantity>,
        in_memory: bool,
    },
    Ephemeral {
        storage_class: String,
        request: Quantity,
    },
}

pub(super) fn parse_cache<'a>(
    get: impl Fn(&str) -> Option<&'a str>,
    arguments: &Arguments,
) -> Result<Cache, VolumeError> {
    let kind = get(attribute::CACHE);
    if kind.is_some() && arguments.has(MountOption::Cache) {
        return Err(VolumeError::CacheTwice);
    }
    for (field, needs) in [
        (attribute::CACHE_SIZE_LIMIT, "emptyDir"),
        (attribute::CACHE_MEDIUM, "emptyDir"),
        (attribute::CACHE_STORAGE_CLASS, "ephemeral"),
        (attribute::CACHE_STORAGE_REQUEST, "ephemeral"),
    ] {
        // An attribute without effect is a mistake: report it.
        if get(field).is_some() && kind != Some(needs) {
            return Err(VolumeError::CacheUnused(field, needs));
        }
    }
    match kind {
        None if arguments.has(MountOption::Cache) => {
            Ok(Cache::EmptyDir { size_limit: limit_of_option(arguments), in_memory: false })
        }
        None => Ok(Cache::None),
        Some("emptyDir") => {
            let field = attribute::CACHE_SIZE_LIMIT;
            let size_limit = get(field).map(|value| parse_quantity(field, value)).transpose()?;
            let size_limit = size_limit.or_else(|| limit_of_option(arguments));
            let in_memory = match get(attribute::CACHE_MEDIUM) {
                None => false,
                Some("Memory") => true,
                Some(other) => return Err(VolumeError::CacheMedium(other.to_owned())),
            };
            Ok(Cache::EmptyDir { size_limit, in_memory })
        }
        Some("ephemeral") => {
            let need = |field: &'static str| get(field).ok_or(VolumeError::CacheIncomplete(field));
            let storage_class = need(attribute::CACHE_STORAGE_CLASS)?.to_owned();
            let field = attribute::CACHE_STORAGE_REQUEST;
            Ok(Cache::Ephemeral { storage_class, request: parse_quantity(field, need(field)?)? })
        }
        Some(other) => Err(VolumeError::CacheUnknown(other.to_owned())),
    }
}

/// How many MiB of a cache on disk with this limit are used.
pub fn cache_share(limit: &Quantity) -> u128 {
    limit.units() * CACHE_SHARE_PERCENT / 100 / (1024 * 1024)
}

/// A cache of a given size needs a folder of that size and no more.
fn limit_of_option(arguments: &Arguments) -> Option<Quantity> {
    let used: u128 = arguments.value(MountOption::MaxCacheSize)?.parse().ok()?;
    // A limit of 0 would be none.
    Some(Quantity::mebibytes(used.saturating_mul(100).div_ceil(CACHE_SHARE_PERCENT).max(1)))
}

/// Points the mount process to the cache's folder in the Mountpoint Pod, whatever path the volume gave, and bounds it.
pub(crate) fn place_cache(cache: &Cache, arguments: &mut Arguments) -> Result<(), VolumeError> {
    if *cache == Cache::None {
        return Ok(());
    }
    arguments.set(MountOption::Cache, Some(CACHE_IN_POD));
    if let Cache::EmptyDir { size_limit: Some(limit), in_memory: false } = cache {
        let limit_mebibytes = limit.units() / (1024 * 1024);
        match arguments.value(MountOption::MaxCacheSize).map(str::to_owned) {
            Some(given) if given.parse::<u128>().is_ok_and(|given| given > limit_mebibytes) => {
                return Err(VolumeError::CacheTooLarge(given, limit_mebibytes));
            }
            Some(_) => {}
            None => arguments.set(MountOption::MaxCacheSize, Some(&cache_share(limit).to_string())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn caches_are_complete_and_given_once() {
        let empty_dir = |size_limit: Option<&str>, in_memory| {
            Ok(Cache::EmptyDir { size_limit: size_limit.and_then(Quantity::parse), in_memory })
        };
        let cache = |attributes: &[(&str, &str)], options: &[&str]| {
            parse(attributes, options).map(|volume| volume.cache)
        };
        assert_eq!(cache(&[], &["cache /tmp/x"]), empty_dir(None, false));
        assert_eq!(cache(&[("cache", "emptyDir")], &[]), empty_dir(None, false));
        assert_eq!(
            cache(&[("cache", "emptyDir")], &["max-cache-size 950"]),
            empty_dir(Some("1000Mi"), false)
        );
        assert_eq!(cache(&[], &["cache /tmp/x", "max-cache-size 0"]), empty_dir(Some("1Mi"), false));
        let memory =
            [("cache", "emptyDir"), ("cacheEmptyDirSizeLimit", "1Gi"), ("cacheEmptyDirMedium", "Memory")];
        assert_eq!(cache(&memory, &[]), empty_dir(Some("1Gi"), true));
        let ephemeral = [
            ("cache", "ephemeral"),
            ("cacheEphemeralStorageClassName", "fast"),
            ("cacheEphemeralStorageResourceRequest", "10Gi"),
        ];
        let request = Quantity::parse("10Gi").unwrap();
        assert_eq!(cache(&ephemeral, &[]), Ok(Cache::Ephemeral { storage_class: "fast".into(), request }));

        assert_eq!(cache(&[("cache", "emptyDir")], &["--cache=/x"]), Err(VolumeError::CacheTwice));
        assert_eq!(cache(&[("cache", "disk")], &[]), Err(VolumeError::CacheUnknown("disk".into())));
        assert_eq!(
            cache(&[("cache", "emptyDir"), ("cacheEmptyDirMedium", "HugePages")], &[]),
            Err(VolumeError::CacheMedium("HugePages".into()))
        );
        assert_eq!(
            cache(&ephemeral[..2], &[]),
            Err(VolumeError::CacheIncomplete("cacheEphemeralStorageResourceRequest"))
        );
        assert_eq!(
            cache(&[("cacheEmptyDirSizeLimit", "1Gi")], &[]),
            Err(VolumeError::CacheUnused("cacheEmptyDirSizeLimit", "emptyDir"))
        );
        assert!(cache(&[("cache", "emptyDir"), ("cacheEmptyDirSizeLimit", "big")], &[]).is_err());
    }
}
