// Package s3store reads and writes the objects of S3, and of servers that use its protocol, for package golden:
//
//	store := &golden.Store{S3: s3store.Options{Region: "eu-west-1"}}
//
// The AWS SDK makes the requests, and finds credentials, region and endpoint as any AWS tool does. In place of a bucket there can
// be the ARN of an access point. If there are no credentials at all, requests are not signed, which is enough for a public bucket.
// Credentials that are configured and do not work are an error. The default region is us-east-1; a bucket in another region is
// found. With an endpoint of its own, the bucket goes into the path, not into the host name. The SDK's own checksums are off unless
// an operation requires them: stores other than AWS reject them, and the digest of a golden covers more.
package s3store
