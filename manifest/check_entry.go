package manifest

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// check checks what an entry shows on its own.
func (e *entry) check() {
	e.checkDigest(codeSHA256, "sha256", e.SHA256, "sha256sum prints it for the stored file")
	e.checkDigest(codeConfigHash, "config_hash", e.ConfigHash, "the meta line of the trace has it")
	e.checkDigest(codeMalformed, "tokens_sha256", e.TokensSHA256, "`vllm-vcr conform` names it for a golden without one")
	e.checkRole()
	e.checkID()
	e.checkPaths()
	e.checkCounts()
	e.checkOrigin()
	if e.Role == Fidelity && e.TokensSHA256 == "" {
		e.warn(codeNoTokens, "role", "fidelity golden "+e.ID+" has no tokens_sha256, so its trace is its own witness",
			"leave it out and run `vllm-vcr conform`: it names the digest of what it replayed")
	}
}

func (e *entry) fail(code, key, message, hint string) {
	e.table.Report(code, Error, key, message, hint)
}

func (e *entry) warn(code, key, message, hint string) {
	e.table.Report(code, Warning, key, message, hint)
}

// checkDigest accepts an absent digest: the required ones are reported as missing.
func (e *entry) checkDigest(code, key, digest, hint string) {
	if digest != "" && !isDigest(digest) {
		e.fail(code, key, fmt.Sprintf("%s %q is not 64 lowercase hexadecimal digits", key, clip(digest)), hint)
	}
}

func isDigest(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// clip shortens a value for a message.
func clip(s string) string { return safetext.Clip(s, 80) }

func (e *entry) checkRole() {
	if e.Role == "" || slices.Contains(Roles(), e.Role) {
		return
	}
	var names []string
	for _, r := range Roles() {
		names = append(names, string(r))
	}
	hint := "write one of " + strings.Join(names, ", ")
	if near, ok := tomlfile.Nearest(string(e.Role), names); ok {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	e.fail(codeRole, "role", fmt.Sprintf("role %q is not known", clip(string(e.Role))), hint)
}

// checkID checks the name that reports and test names are made of. There a slash
// separates the golden from its line, and an asterisk is a pattern.
func (e *entry) checkID() {
	key := "id"
	if !e.table.Has(key) {
		key = "workload"
	}
	ok := !strings.ContainsFunc(e.ID, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._-", r)
	})
	if !ok {
		e.fail(codeMalformed, key, fmt.Sprintf("%s %q cannot name a golden", key, clip(e.ID)), "use letters, digits, dots, underscores and hyphens")
	}
}

func (e *entry) checkPaths() {
	if e.BucketPath != "" {
		if problem := pathProblem(e.BucketPath); problem != "" {
			e.fail(codePath, "bucket_path", fmt.Sprintf("bucket_path %q %s", shown(e.BucketPath), problem), "")
		}
	}
	for _, mirror := range e.Mirrors {
		problem := pathProblem(mirror)
		if !strings.Contains(mirror, "://") {
			problem = "has no scheme (s3, hf, https or file)"
		}
		if problem != "" {
			e.fail(codePath, "mirrors", fmt.Sprintf("mirror %q %s", shown(mirror), problem), "")
		}
	}
}

// Parts of a location that may hold secrets: who asks, and a query, as a signed URL has one.
var (
	userinfo = lazyregexp.New(`(://)[^/@]*@`)
	query    = lazyregexp.New(`\?.+`)
)

// shown is a location as messages show it.
func shown(location string) string {
	return clip(query().ReplaceAllString(userinfo().ReplaceAllString(location, "$1"), "?…"))
}

// pathProblem says what is wrong with the path or location of a golden; it
// returns an empty string when nothing is.
func pathProblem(path string) string {
	scheme, rest, hasScheme := strings.Cut(path, "://")
	if !hasScheme {
		rest = path
	}
	switch {
	case hasScheme && !slices.Contains([]string{"s3", "hf", "https", "file"}, strings.ToLower(scheme)):
		return "has an unknown scheme; known are s3, hf, https and file"
	case strings.ContainsFunc(rest, unicode.IsControl):
		return "contains a control character"
	case strings.ContainsAny(rest, `\?#`):
		return `contains one of \ ? #, which not every store reads alike`
	case !hasScheme && strings.HasPrefix(rest, "/"):
		return "is absolute; make it relative to the bucket, or write file://"
	case hasScheme && strings.EqualFold(scheme, "file") != strings.HasPrefix(rest, "/"):
		return "is no complete location, such as s3://bucket/key or file:///path"
	case slices.ContainsFunc(strings.Split(strings.TrimPrefix(rest, "/"), "/"), isDots):
		return "has an empty, . or .. segment"
	case !strings.HasSuffix(rest, ".jsonl") && !strings.HasSuffix(rest, ".jsonl.gz"):
		return "does not end in .jsonl or .jsonl.gz"
	}
	return ""
}

func isDots(segment string) bool { return segment == "" || segment == "." || segment == ".." }

func (e *entry) checkCounts() {
	for _, key := range []string{"size", "records", "streams", "tokens"} {
		if n := e.table.Int(key); n < 0 || n > math.MaxInt32 && key != "size" {
			e.fail(codeMalformed, key, fmt.Sprintf("%s cannot be %d", key, n), "")
		}
	}
	if e.Records > 0 && e.Streams > e.Records {
		e.fail(codeMalformed, "streams", fmt.Sprintf("%d streams are more than %d records", e.Streams, e.Records), "")
	}
}

func (e *entry) checkOrigin() {
	if image, digest, _ := strings.Cut(e.EngineImage, "@sha256:"); e.EngineImage != "" && (image == "" || !isDigest(digest)) {
		e.fail(codeMalformed, "engine_image", fmt.Sprintf("engine_image %q does not end in @sha256: and a digest", clip(e.EngineImage)),
			"a tag can be moved, a digest cannot")
	}
	if e.CaptureRun != "" && !isWebURL(e.CaptureRun) {
		e.fail(codeMalformed, "capture_run", fmt.Sprintf("capture_run %q is not an http or https URL", clip(e.CaptureRun)), "")
	}
	if v := e.Visibility; v != "" && v != Public && v != Private {
		e.fail(codeMalformed, "visibility", fmt.Sprintf("visibility %q is neither public nor private", clip(string(v))), "")
	}
}

func isWebURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http")
}
