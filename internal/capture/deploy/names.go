package deploy

import (
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// Longest names, in bytes.
const (
	MaxLabel     = 63 // of a label's value, and of a name that is one part of a DNS name
	maxSubdomain = 253
)

var (
	dns1123Label     = lazyregexp.New(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	dns1123Subdomain = lazyregexp.New(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	dns1035Label     = lazyregexp.New(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)
	labelValue       = lazyregexp.New(`^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`)
	labelKey         = lazyregexp.New(`^(?:([^/]+)/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$`)
	dataKey          = lazyregexp.New(`^([-_a-zA-Z0-9]|\.[-_a-zA-Z0-9])[-._a-zA-Z0-9]*$`)
)

// IsLabel reports whether a name can be that of a namespace: one part of a DNS name.
func IsLabel(name string) bool { return len(name) <= MaxLabel && dns1123Label().MatchString(name) }

// IsSubdomain reports whether a name can be that of most objects: a DNS name.
func IsSubdomain(name string) bool {
	return len(name) <= maxSubdomain && dns1123Subdomain().MatchString(name)
}

// IsServiceName reports whether a name can be that of a Service, which begins with a letter.
func IsServiceName(name string) bool {
	return len(name) <= MaxLabel && dns1035Label().MatchString(name)
}

// IsLabelValue reports whether a text can be the value of a label. The empty text can.
func IsLabelValue(text string) bool { return len(text) <= MaxLabel && labelValue().MatchString(text) }

// IsLabelKey reports whether a text can be the key of a label: a name, with a DNS name and a slash before it or without.
func IsLabelKey(text string) bool {
	parts := labelKey().FindStringSubmatch(text)
	return parts != nil && len(parts[2]) <= MaxLabel && (parts[1] == "" || IsSubdomain(parts[1]))
}

// IsDataKey reports whether a text can be a key of a Secret.
func IsDataKey(text string) bool { return len(text) <= maxSubdomain && dataKey().MatchString(text) }
