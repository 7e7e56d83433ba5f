// Package golden gets the bytes of goldens and vouches for them: what [Store.Fetch] returns has the
// digest, and the size, under which the golden is registered.
//
// # Locations
//
// A location is what manifest.Golden.Location(store.Bucket, "") gives:
//
//	s3://bucket/key           an object of S3 or of a server that speaks its protocol
//	https://host/path         an object of any web server
//	file:///dir/file          a file
//	/dir/file or dir/file     a file; a relative one is below [Store.FS] or [Store.Dir]
//
// Schemes are in any case. Everything after the scheme is taken as it is written: nothing is
// unescaped, so that a key is the same in the manifest, in the bucket and in messages.
//
// # The cache
//
// What came from the network is kept under its digest, and only after it was verified:
//
//	sha256/4f/4ff18b97…    one golden, read-only
//	tmp/                   files being written; each becomes an entry by one rename
//
// An entry is hashed again at every use; one that is corrupt is fetched anew and replaced. Several
// processes may share a cache. One that cannot be written costs a warning and a download the next
// time, no more. It may be deleted at any time.
//
// # S3
//
// Credentials, region and endpoint are found as by any AWS tool: AWS_ACCESS_KEY_ID and so on,
// AWS_PROFILE, web identity, a container's or a machine's role. Where there are none at all the
// request is not signed, which is enough for a public bucket. Where there are some that do not work,
// it is an error. The region is us-east-1 unless AWS_REGION or the profile says otherwise. With
// AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL the bucket goes into the path, not into the host name. The
// SDK's own checksums are off unless an operation requires them: stores other than AWS reject them,
// and our digest covers more.
//
// # Errors
//
// There are two that a caller tells apart. A [*MismatchError] is about the golden: the bytes were
// had, and they are not the registered ones. A [*FetchError] is about everything around it: the bytes
// could not be had, and it says what to look at. No error carries credentials, account numbers or the
// query of a signed URL in its text.
package golden
