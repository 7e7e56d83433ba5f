// Package golden gets the bytes of goldens and verifies them: what a [Store] returns has the
// digest, and the size, under which the golden is registered. [Store.Fetch] returns them, and [Store.Pull]
// gets many into the cache at once.
//
// # Locations
//
// A location is what manifest.Golden.Location(store.Bucket, "") gives:
//
//	s3://bucket/key           an object of S3 or of a server that uses its protocol: see [Store.S3]
//	https://host/path         an object of any web server
//	hf://org/repo/path        a file of a dataset repository of the hub at $HF_ENDPOINT, by default
//	                          huggingface.co; hf://org/repo@revision/path one of another revision than
//	                          main. $HF_TOKEN is sent there, and nowhere else
//	bundle://FILE/path        a golden of a bundle, which then holds all of them: see [Store.Bundle]
//	file:///dir/file          a file
//	/dir/file or dir/file     a file; a relative one is below [Store.FS] or [Store.Dir]
//
// Schemes are in any case. Everything after the scheme is taken as it is written: nothing is
// unescaped, so that a key is the same in the manifest, in the bucket and in messages.
//
// A golden may have mirrors. They are tried in order when its location fails, by whatever cause: an
// error, or bytes that are not the registered ones. A golden that came from a mirror is a warning,
// and where all have failed the error has that of each.
//
// # Downloads
//
// A download is hashed while it is written into the cache, in memory that does not grow with it. It
// is tried four times where another try may help: after an answer of 429, 500, 502, 503 or 504, and
// when the connection breaks or nothing comes for [Store.Stall]. Between tries a random time passes,
// or what the server asks for with Retry-After if that is up to 30 s. A body that broke off is
// continued where it did, with Range and If-Match, if its ETag is known. Where that turns out to be
// another object, or the server does not say, it begins anew: bytes of two objects are never put
// together.
//
// # The cache
//
// What came from the network is kept under its digest, and only after it was verified:
//
//	sha256/4f/4ff18b97…    one golden, read-only
//	tmp/                   files being written; each becomes an entry by one rename
//
// An entry is hashed again at every use; one that is corrupt, or is not a regular file, is fetched anew
// and replaced. Links that lead out of the cache are not followed. Several processes may share a
// cache. One that cannot be written, or is full, costs Fetch a warning and a download the next time,
// no more; for Pull it is an error, as it has no other place. It may be deleted at any
// time.
//
// With [Store.Offline] what is remote comes from the cache or not at all.
//
// # Bundles
//
// A bundle is one file that holds goldens with the manifest and the compat matrix that name them:
// [WriteBundle] describes it. It is a plain tar, so that other tools can look into it.
//
// # Errors
//
// There are two that a caller distinguishes. A [*MismatchError] is about the golden: the bytes were
// had, and they are not the registered ones. A [*FetchError] is about everything around it: the bytes
// could not be had, and it says what to look at. No error carries credentials, account numbers or the
// query of a signed URL in its text.
package golden
