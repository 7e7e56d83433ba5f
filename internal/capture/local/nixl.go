package local

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

//go:embed nixl.txt
var nixlPins string

var nixlVersion = lazyregexp.New(`(?m)^nixl==(\S+)`)

// NIXLRelease is the release of nixl that [EnsureNIXL] installs.
func NIXLRelease() string { return nixlVersion().FindStringSubmatch(nixlPins)[1] }

// A NIXL is an installed environment with nixl.
type NIXL struct {
	Python string // its interpreter, which the helper of a data plane runs with
	// Packages is the folder that an engine of the same Python needs on PYTHONPATH, so that its NixlConnector finds nixl.
	Packages  string
	Installed bool // it was not there before
}

// FindNIXL returns the environment in a folder of peers, "" for the default, whether or not it is there.
func FindNIXL(dir string) (NIXL, error) {
	dir, err := Folder(dir)
	home := filepath.Join(dir, "nixl")
	return NIXL{Python: filepath.Join(home, "bin", "python"), Packages: filepath.Join(home, "lib", "python"+enginePython, "site-packages")}, err
}

// EnsureNIXL installs nixl, held to its sha256, unless it is there: 60 MB to download, 300 MB to keep. The release of opt is not used.
func EnsureNIXL(ctx context.Context, opt EngineOptions) (NIXL, error) {
	opt.Release = NIXLRelease()
	in, err := newInstaller(opt)
	if err != nil {
		return NIXL{}, err
	}
	n, err := FindNIXL(in.Dir)
	if err != nil {
		return n, err
	}
	home := filepath.Dir(filepath.Dir(n.Python))
	present := func() bool {
		text, err := os.ReadFile(filepath.Join(home, wholeFile))
		return err == nil && string(text) == nixlPins
	}
	if present() {
		return n, nil
	}
	unlock, err := in.lock(ctx)
	if err != nil {
		return n, in.failed(ctx, "nixl", err)
	}
	defer unlock()
	if present() { // another process has installed it meanwhile
		return n, nil
	}
	b, err := in.newBuild()
	if err != nil {
		return n, err
	}
	defer in.clean()
	b.lines = nixlPins
	for _, step := range []func(context.Context) error{b.bootstrap, b.installUV, b.create, b.packages} {
		if err == nil {
			err = step(ctx)
		}
	}
	if err == nil {
		_, err = b.run(ctx, nil, b.python(), "-c", "import nixl_cu13._api")
	}
	if err == nil {
		err = os.WriteFile(b.in(wholeFile), []byte(nixlPins), 0o644)
	}
	if err == nil {
		err = in.place(b.home, home)
	}
	if err != nil {
		return n, in.failed(ctx, "nixl", fmt.Errorf("it cannot be installed: %w", err))
	}
	n.Installed = true
	return n, nil
}
