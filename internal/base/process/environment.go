package process

import (
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// A Keep decides by name and value whether a process gets a variable of its owner's environment.
type Keep func(name, value string) bool

// Environment returns those entries of an environment, as "NAME=value", that keep accepts, and then more. Of two entries
// of a name the last one counts. It is never nil, which package exec would take for the whole environment of the owner.
func Environment(inherited []string, keep Keep, more ...string) []string {
	env := []string{}
	for _, entry := range inherited {
		name, value, _ := strings.Cut(entry, "=")
		if name == "" || keep(name, value) { // Windows has entries such as "=C:=C:\work"
			env = append(env, entry)
		}
	}
	return append(env, more...)
}

// WithoutSecrets keeps the variables that are named, and those that [Secret] does not take for secrets.
func WithoutSecrets(passed ...string) Keep {
	return func(name, value string) bool { return slices.Contains(passed, name) || !Secret(name, value) }
}

// Withheld returns the names of the variables that [WithoutSecrets] does not keep, sorted.
func Withheld(inherited []string, passed ...string) []string {
	keep, names := WithoutSecrets(passed...), []string(nil)
	for _, entry := range inherited {
		if name, value, _ := strings.Cut(entry, "="); name != "" && !keep(name, value) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Secret reports whether a variable is one of those in which a job is usually handed a secret, or a way to one: those of
// GitHub's runner, with the files by which a step sets outputs and the variables of later steps; those of clouds; a name
// with a word such as TOKEN, SECRET, PASSWORD or KEY; and a URL with a user in it, such as that of a database or a package
// index. TOKENIZERS_PARALLELISM has no such word. Settings of this program hold no secret, and vLLM has thresholds
// in tokens: of its settings the last word counts alone, as in VLLM_API_KEY.
func Secret(name, value string) bool {
	name = strings.ToUpper(name)
	switch {
	case userInURL().MatchString(value):
		return true
	case strings.HasPrefix(name, "VLLM_VCR_"):
		return false
	case strings.HasPrefix(name, "VLLM_"):
		return lastWord().MatchString(name)
	}
	return lastWord().MatchString(name) || anyWord().MatchString(name) || wholeName().MatchString(name)
}

var (
	wholeName = lazyregexp.New(`^(` +
		// Of CI systems. RUNNER_TRACKING_ID is not a secret: by it the runner ends what a job has left behind.
		`ACTIONS_.*|INPUT_.*|STATE_.*|GITHUB_(ENV|OUTPUT|PATH|STATE|STEP_SUMMARY)|` +
		// Of clouds, and of tools that keep credentials.
		`AWS_.*|AZURE_.*|ARM_(CLIENT|OIDC|ACCESS)_.*|(MSI|IDENTITY)_(ENDPOINT|HEADER)|GOOGLE_.*|GCLOUD_.*|CLOUDSDK_(AUTH_.*|CONFIG)|` +
		`ALIBABA_CLOUD_.*|VAULT_.*|BOTO_CONFIG|KUBECONFIG|DOCKER_(AUTH_)?CONFIG|REGISTRY_AUTH_FILE|NETRC|PGPASSFILE|` +
		`(GIT|SSH)_ASKPASS|SSH_AUTH_SOCK|GPG_AGENT_INFO)$`)
	anyWord = lazyregexp.New(`(^|_)(TOKEN|JWT|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|CREDENTIALS?|CREDS|APIKEY|` +
		`(ACCESS|ACCOUNT|API|PRIVATE|SIGNING|ENCRYPTION|DEPLOY|SSH|GPG)_KEY)(_|$)`)
	lastWord  = lazyregexp.New(`(^|_)(TOKEN|JWT|SECRETS?|PASSWORD|PASS|KEYS?|APIKEY|PAT|AUTH|BEARER|COOKIE|DSN|CONNECTION_STRING|WEBHOOK(_URL)?)$`)
	userInURL = lazyregexp.New(`://[^/\s@]+@`)
)
