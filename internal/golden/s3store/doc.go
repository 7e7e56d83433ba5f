// Package s3store reads and writes the objects of S3, and of servers that use its protocol, for package golden:
//
//	store := &golden.Store{S3: s3store.Options{Region: "eu-west-1"}}
//
// It makes seven kinds of request, so it has no generated client, which would be a tenth of the program. The AWS SDK signs them.
//
// Credentials, region and endpoint are found as by any AWS tool: AWS_ACCESS_KEY_ID and so on, AWS_PROFILE with keys, roles,
// web identity or a credential_process, a container's or a machine's role. A login through a browser (SSO, aws login) and
// codes of MFA are refused with what to do instead. Names of access points in place of a bucket, and directory buckets
// (S3 Express), are not supported. Where there are none at all the request is not signed, which is enough for a public bucket.
// Where there are some that do not work, it is an error. The region is us-east-1 unless AWS_REGION or the profile says
// otherwise. With AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL the bucket goes into the path, not into the host name. An upload
// carries its SHA-256. Of a download no checksum is requested: some stores reject that, and our digest covers more.
package s3store
