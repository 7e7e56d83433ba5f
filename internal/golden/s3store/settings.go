package s3store

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

// settings are what the environment and the files of the AWS tools say: https://docs.aws.amazon.com/sdkref/latest/guide.
type settings struct {
	profile  string                       // its name
	sections map[string]map[string]string // by name: "ci" for a profile, "services local" for others
	region   string
	named    bool // the region is not the default
	attempts int  // at most, of a request for credentials
}

// maxSettings is the most bytes that are read of a file of settings.
const maxSettings = 1 << 20

// readSettings reads the environment and the two files. Without AWS_PROFILE there need not be a profile.
func readSettings(region string) (settings, error) {
	profile := cmp.Or(os.Getenv("AWS_PROFILE"), os.Getenv("AWS_DEFAULT_PROFILE"))
	set := settings{profile: cmp.Or(profile, "default"), sections: make(map[string]map[string]string)}
	home, _ := os.UserHomeDir()
	for _, file := range []struct {
		name   string
		config bool
	}{
		{cmp.Or(os.Getenv("AWS_CONFIG_FILE"), filepath.Join(home, ".aws", "config")), true},
		// What both say counts as it is here.
		{cmp.Or(os.Getenv("AWS_SHARED_CREDENTIALS_FILE"), filepath.Join(home, ".aws", "credentials")), false},
	} {
		if err := set.readFile(file.name, file.config); err != nil {
			return set, err
		}
	}
	if _, ok := set.sections[set.profile]; !ok && profile != "" {
		return set, fmt.Errorf("the files of the AWS tools have no profile %q, which AWS_PROFILE names", clip(profile))
	}
	set.region = cmp.Or(region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), set.of("region"))
	set.named = set.region != ""
	set.region = cmp.Or(set.region, defaultRegion)
	if !regionPattern().MatchString(set.region) {
		return set, fmt.Errorf("the S3 region %q is not one such as eu-west-1", clip(set.region))
	}
	attempts := cmp.Or(set.either("AWS_MAX_ATTEMPTS", "max_attempts"), strconv.Itoa(retry.Tries))
	var err error
	if set.attempts, err = strconv.Atoi(attempts); err != nil || set.attempts < 1 {
		return set, fmt.Errorf("AWS_MAX_ATTEMPTS or max_attempts is %q, which is not a number of at least 1", clip(attempts))
	}
	return set, nil
}

func (set settings) readFile(name string, config bool) error {
	file, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxSettings+1))
	if err == nil && len(text) > maxSettings {
		err = fmt.Errorf("%s has more than %d bytes, which no file of AWS profiles needs", name, maxSettings)
	}
	if err == nil {
		set.parse(text, config)
	}
	return err
}

// parse reads the sections of a file. In the config file that of a profile other than the default begins with
// "profile". A key in an indented line belongs to the key above that has no value, and is named after both:
// "s3.endpoint_url".
func (set settings) parse(text []byte, config bool) {
	var section map[string]string
	var above string
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		raw := lines.Text()
		line := strings.TrimSpace(raw)
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
			continue
		case line[0] == '[':
			name, _, _ := strings.Cut(line[1:], "]")
			words := strings.Fields(name)
			if name = strings.Join(words, " "); config && len(words) == 2 && words[0] == "profile" {
				name = words[1]
			} else if config && len(words) == 1 && name != "default" {
				section, above = nil, "" // the AWS tools ignore it, too
				continue
			}
			if section = set.sections[name]; section == nil {
				section = make(map[string]string)
				set.sections[name] = section
			}
			above = ""
			continue
		}
		at := strings.IndexAny(line, "=:")
		if section == nil || at < 0 {
			continue
		}
		key, value := strings.ToLower(strings.TrimSpace(line[:at])), line[at+1:]
		for _, comment := range []string{" #", " ;", "\t#", "\t;"} {
			value, _, _ = strings.Cut(value, comment)
		}
		value = strings.TrimSpace(value)
		if len(value) > 1 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
			value = value[1 : len(value)-1]
		}
		if indented := raw[0] == ' ' || raw[0] == '\t'; indented && above != "" {
			key = above + "." + key
		} else if above = ""; value == "" {
			above = key
		}
		section[key] = value
	}
}

// of returns what the profile says of a key.
func (set settings) of(key string) string { return set.sections[set.profile][key] }

// either returns what the environment says, or else the profile.
func (set settings) either(variable, key string) string {
	return cmp.Or(os.Getenv(variable), set.of(key))
}

// isTrue reports whether the environment says true, or else the profile.
func (set settings) isTrue(variable, key string) bool {
	return strings.EqualFold(set.either(variable, key), "true")
}

func (set settings) fips() aws.FIPSEndpointState {
	if set.isTrue("AWS_USE_FIPS_ENDPOINT", "use_fips_endpoint") {
		return aws.FIPSEndpointStateEnabled
	}
	return aws.FIPSEndpointStateDisabled
}

func (set settings) dualStack() aws.DualStackEndpointState {
	if set.isTrue("AWS_USE_DUALSTACK_ENDPOINT", "use_dualstack_endpoint") {
		return aws.DualStackEndpointStateEnabled
	}
	return aws.DualStackEndpointStateDisabled
}

// endpoint is the URL of a service, s3 or sts, that is not at AWS, or not at its usual place; "" if nothing names one.
func (set settings) endpoint(service string) string {
	if set.isTrue("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "ignore_configured_endpoint_urls") {
		return ""
	}
	return cmp.Or(
		os.Getenv("AWS_ENDPOINT_URL_"+strings.ToUpper(service)), os.Getenv("AWS_ENDPOINT_URL"),
		set.sections["services "+set.of("services")][service+".endpoint_url"], set.of("endpoint_url"),
	)
}
