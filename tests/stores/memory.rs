//! A store that keeps its objects in memory, for benchmarks.
//!
//! Owns no faults: the server around it has them. A real store is another machine, so this one must
//! take as little of the processors as possible: no files, no digests of what it keeps. Has only the
//! requests that a node makes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt as _;
use hearthfs::clock::Clock;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CreateMultipartUploadInput, CreateMultipartUploadOutput,
    DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject,
    ETag, ETagCondition, GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput,
    ListObjectsV2Input, ListObjectsV2Output, Object, PutObjectInput, PutObjectOutput,
    StreamingBlob, Timestamp, UploadPartInput, UploadPartOutput,
};
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};

/// The most names in one page of a list.
const PAGE: usize = 1000;

/// An object.
#[derive(Debug, Clone)]
struct Kept {
    bytes: Bytes,
    /// Different for each version of each object.
    version: u64,
    written: SystemTime,
}

#[derive(Debug, Default)]
struct Objects {
    kept: BTreeMap<String, Kept>,
    /// The parts of each unfinished upload, by number.
    uploads: HashMap<String, BTreeMap<i32, Bytes>>,
    /// The last number that was given to a version, a part or an upload.
    last: u64,
}

/// The objects of one bucket, whatever its name; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory(Arc<Mutex<Objects>>);

impl Kept {
    fn tag(&self) -> ETag {
        tag(self.version)
    }
}

impl Objects {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Puts an object if the conditions hold.
    fn put(
        &mut self,
        key: String,
        bytes: Bytes,
        if_none: Option<&ETagCondition>,
        if_match: Option<&ETagCondition>,
    ) -> S3Result<ETag> {
        let there = self.kept.get(&key).map(Kept::tag);
        let refused = if_none.is_some_and(|wanted| holds(wanted, there.as_ref()))
            || if_match.is_some_and(|wanted| !holds(wanted, there.as_ref()));
        if refused {
            return Err(s3_error!(PreconditionFailed));
        }
        let kept =
            Kept { bytes, version: self.next(), written: UNIX_EPOCH + Clock::system().wall() };
        let tag = kept.tag();
        self.kept.insert(key, kept);
        Ok(tag)
    }
}

impl Memory {
    fn with<R>(&self, act: impl FnOnce(&mut Objects) -> R) -> R {
        act(&mut self.0.lock().expect("no thread panics with the lock"))
    }

    /// Returns the rest of each name that begins so.
    pub(super) fn names(&self, beginning: &str) -> Vec<String> {
        let rest = |key: &String| key.strip_prefix(beginning).map(ToOwned::to_owned);
        self.with(|all| all.kept.keys().filter_map(rest).collect())
    }

    fn get(&self, key: &str) -> S3Result<Kept> {
        self.with(|all| all.kept.get(key).cloned()).ok_or_else(|| s3_error!(NoSuchKey))
    }
}

fn tag(version: u64) -> ETag {
    ETag::Strong(version.to_string())
}

/// Reports whether a condition is true of the tag of an object, or of its absence.
fn holds(wanted: &ETagCondition, there: Option<&ETag>) -> bool {
    there.is_some_and(|there| wanted.as_etag().is_none_or(|wanted| wanted.weak_cmp(there)))
}

async fn whole(body: Option<StreamingBlob>) -> S3Result<Bytes> {
    let Some(body) = body else { return Ok(Bytes::new()) };
    let pieces: Vec<Bytes> = body.try_collect().await.map_err(|_| s3_error!(IncompleteBody))?;
    if let [only] = &pieces[..] {
        return Ok(only.clone());
    }
    let mut whole = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    for piece in &pieces {
        whole.extend_from_slice(piece);
    }
    Ok(whole.freeze())
}

#[expect(clippy::unnecessary_wraps, reason = "each method ends with it")]
fn answer<T>(output: T) -> S3Result<S3Response<T>> {
    Ok(S3Response::new(output))
}

#[async_trait::async_trait]
impl S3 for Memory {
    async fn put_object(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let input = request.input;
        let bytes = whole(input.body).await?;
        let (if_none, if_match) = (input.if_none_match, input.if_match);
        let tag =
            self.with(|all| all.put(input.key, bytes, if_none.as_ref(), if_match.as_ref()))?;
        answer(PutObjectOutput { e_tag: Some(tag), ..PutObjectOutput::default() })
    }

    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let input = request.input;
        let kept = self.get(&input.key)?;
        if input.if_none_match.is_some_and(|known| holds(&known, Some(&kept.tag()))) {
            return Err(s3_error!(NotModified));
        }
        let size = kept.bytes.len() as u64;
        let (part, content_range) = match input.range {
            None => (kept.bytes.clone(), None),
            Some(range) => {
                let part = range.check(size)?;
                let text = format!("bytes {}-{}/{size}", part.start, part.end - 1);
                (kept.bytes.slice(part.start as usize..part.end as usize), Some(text))
            }
        };
        answer(GetObjectOutput {
            content_length: Some(part.len() as i64),
            body: Some(StreamingBlob::from(s3s::Body::from(part))),
            content_range,
            last_modified: Some(Timestamp::from(kept.written)),
            e_tag: Some(kept.tag()),
            ..GetObjectOutput::default()
        })
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let kept = self.get(&request.input.key)?;
        answer(HeadObjectOutput {
            content_length: Some(kept.bytes.len() as i64),
            last_modified: Some(Timestamp::from(kept.written)),
            e_tag: Some(kept.tag()),
            ..HeadObjectOutput::default()
        })
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.with(|all| all.kept.remove(&request.input.key));
        answer(DeleteObjectOutput::default())
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let gone = request.input.delete.objects.into_iter().map(|object| {
            self.with(|all| all.kept.remove(&object.key));
            DeletedObject { key: Some(object.key), ..DeletedObject::default() }
        });
        let deleted = Some(gone.collect());
        answer(DeleteObjectsOutput { deleted, ..DeleteObjectsOutput::default() })
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = request.input;
        if input.delimiter.is_some() {
            return Err(s3_error!(NotImplemented));
        }
        let prefix = input.prefix.clone().unwrap_or_default();
        let after = input.continuation_token.clone().max(input.start_after.clone());
        let most = input.max_keys.map_or(PAGE, |most| PAGE.min(most as usize));
        let mut found: Vec<Object> = self.with(|all| {
            let from = after.clone().unwrap_or_default().max(prefix.clone());
            let named = all.kept.range(from..).take_while(|(key, _)| key.starts_with(&prefix));
            let later = named.filter(|(key, _)| after.as_ref().is_none_or(|after| *key > after));
            let object = |(key, kept): (&String, &Kept)| Object {
                key: Some(key.clone()),
                size: Some(kept.bytes.len() as i64),
                last_modified: Some(Timestamp::from(kept.written)),
                e_tag: Some(kept.tag()),
                ..Object::default()
            };
            later.take(most + 1).map(object).collect()
        });
        let is_truncated = found.len() > most;
        found.truncate(most);
        let last = found.last().and_then(|object| object.key.clone());
        answer(ListObjectsV2Output {
            key_count: Some(found.len() as i32),
            is_truncated: Some(is_truncated),
            next_continuation_token: last.filter(|_| is_truncated),
            contents: Some(found),
            name: Some(input.bucket),
            prefix: input.prefix,
            ..ListObjectsV2Output::default()
        })
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let id = self.with(|all| {
            let id = all.next().to_string();
            all.uploads.insert(id.clone(), BTreeMap::new());
            id
        });
        answer(CreateMultipartUploadOutput {
            bucket: Some(request.input.bucket),
            key: Some(request.input.key),
            upload_id: Some(id),
            ..CreateMultipartUploadOutput::default()
        })
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let input = request.input;
        let bytes = whole(input.body).await?;
        let tag = self.with(|all| {
            let version = all.next();
            let parts = all.uploads.get_mut(&input.upload_id)?;
            parts.insert(input.part_number, bytes);
            Some(tag(version))
        });
        let e_tag = Some(tag.ok_or_else(|| s3_error!(NoSuchUpload))?);
        answer(UploadPartOutput { e_tag, ..UploadPartOutput::default() })
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let input = request.input;
        let (if_none, if_match) = (input.if_none_match, input.if_match);
        let tag = self.with(|all| {
            let parts = all.uploads.remove(&input.upload_id);
            let parts = parts.ok_or_else(|| s3_error!(NoSuchUpload))?;
            let bytes = parts.into_values().collect::<Vec<Bytes>>().concat().into();
            all.put(input.key.clone(), bytes, if_none.as_ref(), if_match.as_ref())
        })?;
        answer(CompleteMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(tag),
            ..CompleteMultipartUploadOutput::default()
        })
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.with(|all| all.uploads.remove(&request.input.upload_id));
        answer(AbortMultipartUploadOutput::default())
    }
}
