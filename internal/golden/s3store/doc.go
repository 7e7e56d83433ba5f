// Package s3store reads and writes the objects of S3, and of servers that use its protocol, for package golden:
//
//	store := &golden.Store{S3: s3store.Options{Region: "eu-west-1"}}
//
// The AWS SDK makes the requests. In place of a bucket there can be the ARN of an access point.
//
// Credentials, region and endpoint are found as by any AWS tool: AWS_ACCESS_KEY_ID and so on, AWS_PROFILE with keys, roles,
// web identity or a credential_process, a container's or a machine's role. A login through a browser (SSO, aws login) and
// codes of MFA are refused with what to do instead. Where there are none at all the request is not signed, which is enough for a
// public bucket. Where there are some that do not work, it is an error. The region is us-east-1 unless AWS_REGION or the profile
// says otherwise. With AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL the bucket goes into the path, not into the host name. The SDK's
// own checksums are off unless an operation requires them: stores other than AWS reject them, and our digest covers more.
package s3store
