package process

import (
	"runtime/debug"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestModuleVersion(t *testing.T) {
	const revision = "0123456789abcdef0123456789abcdef01234567"
	for _, test := range []struct{ name, module, revision, modified, want string }{
		{"released", "v1.2.3", "", "", "v1.2.3"},
		{"of a commit", "v0.0.0-20261124110000-0123456789ab+dirty", revision, "true", "v0.0.0-20261124110000-0123456789ab+dirty"},
		{"module without a version", "(devel)", revision, "false", "devel-0123456789ab"},
		{"changed files", "(devel)", revision, "true", "devel-0123456789ab-dirty"},
		{"no commit", "(devel)", "", "", "(devel)"},
		{"nothing", "", "", "", "(devel)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			info := &debug.BuildInfo{Main: debug.Module{Version: test.module}}
			if test.revision != "" {
				info.Settings = []debug.BuildSetting{{Key: "vcs.revision", Value: test.revision}, {Key: "vcs.modified", Value: test.modified}}
			}
			require.Equal(t, moduleVersion(info), test.want, "moduleVersion")
		})
	}
}
