package main

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestImage builds the image out of archives with this product, and runs it as a careful user would.
func TestImage(t *testing.T) {
	testenv.ImageTool(t, "buildah")
	testenv.ImageTool(t, "skopeo")
	server := httptest.NewTLSServer(http.FileServer(http.Dir(filepath.Join(repository(t), "testdata", "goldens"))))
	defer server.Close()
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of those that do not trust it
	bundle := filepath.Join(t.TempDir(), "ca.crt")
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(t, os.WriteFile(bundle, authority, 0o600))
	_, product := imageArchives(t)
	layout := buildImage(t, "CA_BUNDLE="+bundle, "DIST="+product)

	t.Run("both architectures", func(t *testing.T) { checkArchitectures(t, layout) })
	t.Run("the same again", func(t *testing.T) {
		if first, again := rawDigest(t, "oci:"+buildImage(t)), rawDigest(t, "oci:"+buildImage(t)); first != again {
			t.Errorf("built twice: %s and %s", first, again)
		}
	})
	c := newContainer(t, layout)
	t.Run("conform", func(t *testing.T) {
		out, err := c.run("conform", "--line", "0.33")
		require.True(t, err == nil && strings.Contains(out, "\nPASS: every gate holds: "), "%v\n%s", err, out)
	})
	t.Run("read-only without a home", func(t *testing.T) {
		out, err := c.runReadOnly(t, "conform", "--line", "0.33")
		require.True(t, err == nil && strings.Contains(out, "\nPASS: every gate holds: "), "%v\n%s", err, out)
	})
	t.Run("https", func(t *testing.T) { checkHTTPS(t, c, server) })
}

// checkHTTPS has the image fetch a golden from a server that only the authority in its bundle vouches for.
func checkHTTPS(t *testing.T, c *container, server *httptest.Server) {
	var asked atomic.Int64
	files := server.Config.Handler
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		files.ServeHTTP(w, r)
	})
	dir := rootTempDir(t)
	manifest := read(t, filepath.Join(repository(t), "conformance", "manifest.toml"))
	manifest = strings.ReplaceAll(manifest, `bucket_path = "`, `bucket_path = "`+server.URL+`/`)
	write(t, dir, map[string]string{"manifest.toml": manifest})
	cache := filepath.Join(dir, "cache")
	// The user of the image is another one.
	require.NoError(t, errors.Join(os.Chmod(dir, 0o755), os.Mkdir(cache, 0o777), os.Chmod(cache, 0o777)))
	c.mounts = []string{dir + ":/in:ro", cache + ":/cache"}
	args := []string{"conform", "--line", "0.33", "--golden", "multiturn-s7", "--manifest", "/in/manifest.toml"}
	out, err := c.run(args...)
	if err != nil || asked.Load() == 0 || !strings.Contains(out, "\nPASS: every gate holds: ") {
		t.Errorf("%v, asked for %d goldens\n%s", err, asked.Load(), out)
	}
	// The cache is another one too.
	c.mounts = []string{c.mounts[0], "/etc/ssl/certs/ca-certificates.crt:/etc/ssl/certs/ca-certificates.crt:ro"}
	out, err = c.run(args...)
	require.True(t, err != nil && strings.Contains(out, "certificate signed by unknown authority"), "another bundle: %v, want that it trusts nobody else\n%s", err, out)
}

// checkArchitectures looks for a binary of its own in each image of the list.
func checkArchitectures(t *testing.T, layout string) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		dir := filepath.Join(t.TempDir(), arch)
		command(t, nil, "skopeo", "--override-arch", arch, "copy", "--quiet", "oci:"+layout, "dir:"+dir)
		var image struct {
			Config struct{ Digest string }
			Layers []struct{ Digest string }
		}
		decode(t, filepath.Join(dir, "manifest.json"), &image)
		var config struct {
			Architecture string
			Created      string
			Config       struct {
				User, WorkingDir string
				Entrypoint, Cmd  []string
				Labels           map[string]string
			}
		}
		decode(t, filepath.Join(dir, strings.TrimPrefix(image.Config.Digest, "sha256:")), &config)
		c := config.Config
		if config.Architecture != arch || config.Created != "1970-01-01T00:00:00Z" || c.User != "65532:65532" ||
			fmt.Sprint(c.Entrypoint, c.Cmd) != "[/vllm-vcr] []" || c.Labels["org.opencontainers.image.version"] != imageVersion ||
			c.Labels["org.opencontainers.image.revision"] != "abc" || c.Labels["org.opencontainers.image.licenses"] != "Apache-2.0" {
			t.Errorf("%s: got %+v", arch, config)
		}
		var found []string
		for _, layer := range image.Layers {
			list, contents := members(t, filepath.Join(dir, strings.TrimPrefix(layer.Digest, "sha256:")))
			found = append(found, list...)
			if binary := contents["vllm-vcr"]; binary != nil {
				file, err := elf.NewFile(bytes.NewReader(binary))
				require.True(t, err == nil && file.Machine == machine && len(file.Progs) != 0 && !interpreted(file), "%s: not a static binary of %v: %v", arch, machine, err)
			}
		}
		if all := strings.Join(found, "\n"); !strings.Contains(all, `755 0:0 "":"" 0 vllm-vcr`) ||
			!strings.Contains(all, `644 0:0 "":"" 0 etc/ssl/certs/ca-certificates.crt`) {
			t.Errorf("%s: it holds\n%s", arch, all)
		}
	}
}

func interpreted(file *elf.File) bool {
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			return true
		}
	}
	return false
}

// TestPushImage pushes to a real registry.
func TestPushImage(t *testing.T) {
	testenv.ImageTool(t, "buildah")
	testenv.ImageTool(t, "skopeo")
	testenv.ImageTool(t, "jq")
	registry := startRegistry(t)
	repo := registry + "/vllm-vcr/vllm-vcr"
	one, other := buildImage(t, "REVISION=abc"), buildImage(t, "REVISION=def")
	oneDigest, otherDigest := rawDigest(t, "oci:"+one), rawDigest(t, "oci:"+other)
	matrix := `[{"line":"0.33","image_tags":["1.2.3-vllm0.33","vllm0.33","latest"]},{"line":"0.32","image_tags":["1.2.3-vllm0.32","vllm0.32"]}]`
	steps := []struct {
		name, layout, kind, version string
		matrix                      string // that above unless given
		code                        int
		want                        string            // part of what it says
		tags                        map[string]string // the digests of the tags afterwards
	}{
		{
			name: "main", layout: one, kind: "main", version: "1.2.3", want: "edge is " + oneDigest,
			tags: map[string]string{"edge": oneDigest},
		},
		{
			name: "main moves on", layout: other, kind: "main", version: "1.2.3",
			tags: map[string]string{"edge": otherDigest},
		},
		{
			name: "another registered first", layout: other, kind: "release", version: "1.2.3",
			matrix: `[{"image_tags":["1.2.3-vllm0.32"]}]`, want: "1.2.3-vllm0.32 is " + otherDigest,
			tags: map[string]string{"1.2.3-vllm0.32": otherDigest},
		},
		{
			name: "a release that would move", layout: one, kind: "release", version: "1.2.3", code: 1,
			want: "1.2.3-vllm0.32 is " + otherDigest + ", but this image is " + oneDigest + ": a released tag does not move",
		},
		{
			name: "a release", layout: other, kind: "release", version: "1.2.3", want: "1.2.3-vllm0.32 has this image already",
			tags: map[string]string{"1.2.3-vllm0.33": otherDigest},
		},
		{
			name: "which is the newest", layout: other, kind: "newest", version: "1.2.3", want: "latest is " + otherDigest,
			tags: map[string]string{"latest": otherDigest, "vllm0.33": otherDigest, "vllm0.32": otherDigest},
		},
		{
			name: "a newest that would move", layout: one, kind: "newest", version: "1.2.3", code: 1, want: "a released tag does not move",
		},
		{name: "a matrix of another version", layout: one, kind: "release", version: "1.2.4", code: 2, want: "the matrix has no tag for release 1.2.4"},
		{name: "no matrix", layout: one, kind: "main", version: "1.2.3", matrix: "{}", code: 2, want: "want the output of vllm-vcr compat matrix"},
		{name: "no image", layout: one + "x", kind: "main", version: "1.2.3", code: 2, want: "no image there"},
	}
	tags := map[string]string{}
	for _, step := range steps {
		input := step.matrix
		if input == "" {
			input = matrix
		}
		out, code := script(t, insecure(t, registry), input, "push-image", step.layout, repo, step.kind, step.version)
		if code != step.code || !strings.Contains(out, step.want) {
			t.Fatalf("%s: exit code %d, want %d and %q:\n%s", step.name, code, step.code, step.want, out)
		}
		for tag, digest := range step.tags {
			tags[tag] = digest
		}
		requireTags(t, step.name, registry, "vllm-vcr/vllm-vcr", tags)
	}
	out, code := script(t, nil, matrix, "push-image", one, "127.0.0.1:1/nobody", "release", "1.2.3")
	require.True(t, code == 3 && strings.Contains(out, "cannot be looked up: "), "no registry: exit code %d, want 3:\n%s", code, out)
}

// TestPublishChart publishes the chart with the digest of an image that is in the registry.
func TestPublishChart(t *testing.T) {
	helm := testenv.Helm(t)
	testenv.ImageTool(t, "skopeo")
	registry := startRegistry(t)
	layout := buildImage(t)
	digest := rawDigest(t, "oci:"+layout)
	env := append(insecure(t, registry), "PLAIN_HTTP=1", "PATH="+filepath.Dir(helm)+":"+os.Getenv("PATH"))
	command(t, env, "skopeo", "copy", "--quiet", "--all", "--preserve-digests", "oci:"+layout, "docker://"+registry+"/serve:1.2.3-vllm0.33")
	const matrix = `[{"line": "nightly", "tag": "nightly"}, {"line": "0.33", "tag": "v0.33.0"}]`
	for _, step := range []struct {
		name, matrix, version, want string
		code                        int
	}{
		{name: "an image that is absent", matrix: matrix, version: "1.2.4", code: 3, want: "/serve:1.2.4-vllm0.33: "},
		{name: "no matrix", matrix: "{", version: "1.2.3", code: 2, want: "stdin: want the output of vllm-vcr compat matrix"},
		{name: "a release", matrix: matrix, version: "1.2.3", want: "Pushed: " + registry + "/charts/vllm-vcr:1.2.3"},
		{name: "the same again", matrix: matrix, version: "1.2.3", want: "is there already"},
	} {
		out, code := script(t, env, step.matrix, "publish-chart", step.version, registry+"/serve", registry+"/charts")
		if code != step.code || !strings.Contains(out, step.want) {
			t.Fatalf("%s: exit code %d, want %d and %q:\n%s", step.name, code, step.code, step.want, out)
		}
	}
	out := command(t, env, helm, "template", "fleet", "oci://"+registry+"/charts/vllm-vcr", "--version", "1.2.3", "--plain-http")
	if want := "image: ghcr.io/vllm-vcr/serve:1.2.3-vllm0.33@" + digest + "\n"; !strings.Contains(out, want) {
		t.Errorf("no %q in:\n%s", want, out)
	}
}

// requireTags compares the tags of a repository with what they should be.
func requireTags(t *testing.T, step, registry, name string, want map[string]string) {
	t.Helper()
	resp, err := http.Get("http://" + registry + "/v2/" + name + "/tags/list")
	require.NoError(t, err)
	defer resp.Body.Close()
	var list struct{ Tags []string }
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&list))
	if len(list.Tags) != len(want) {
		t.Fatalf("%s: tags %v, want %v", step, list.Tags, want)
	}
	for _, tag := range list.Tags {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodHead, "http://"+registry+"/v2/"+name+"/manifests/"+tag, nil)
		require.NoError(t, err)
		req.Header.Set("Accept", "application/vnd.oci.image.index.v1+json")
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, resp.Header.Get("Docker-Content-Digest"), want[tag], "%s: %s", step, tag)
	}
}

func startRegistry(t *testing.T) (address string) {
	t.Helper()
	program := testenv.ImageTool(t, "docker-registry")
	address = "127.0.0.1:" + strconv.Itoa(testenv.FreePort(t))
	dir := t.TempDir()
	write(t, dir, map[string]string{"config.yml": "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: " + dir +
		"/data}}\nhttp: {addr: '" + address + "'}\n"})
	peer := testenv.Process(t, "docker-registry", exec.Command(program, "serve", filepath.Join(dir, "config.yml")))
	for {
		resp, err := http.Get("http://" + address + "/v2/")
		if err == nil {
			resp.Body.Close()
			return address
		}
		select {
		case <-peer.Done():
			t.Fatalf("docker-registry ended: %v\n%s", peer.Err(), peer.Tail())
		case <-t.Context().Done():
			t.Fatal("docker-registry did not start")
		default:
		}
	}
}

// insecure is the environment in which skopeo talks to a registry without TLS.
func insecure(t *testing.T, registry string) []string {
	home := t.TempDir()
	write(t, home, map[string]string{
		".config/containers/registries.conf": "[[registry]]\nlocation = \"" + registry + "\"\ninsecure = true\n",
	})
	return []string{"HOME=" + home}
}

// asRoot puts before a command what makes it run as root. Where that is not possible, the test ends.
func asRoot(t *testing.T, line ...string) []string {
	t.Helper()
	if os.Getuid() == 0 {
		return line
	}
	if err := exec.Command("sudo", "--non-interactive", "true").Run(); err != nil {
		testenv.Absent(t, "running an image here needs root, and sudo: "+err.Error())
	}
	return append([]string{"sudo", "--non-interactive"}, line...)
}

// rootTempDir is a folder that goes when the test ends, whoever the files in it belong to. Its name has no upper case,
// which that of an image may not have.
func rootTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dist-test-")
	require.NoError(t, err)
	remove := asRoot(t, "rm", "-rf", dir)
	t.Cleanup(func() {
		if out, err := exec.Command(remove[0], remove[1:]...).CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", remove, err, out)
		}
	})
	return dir
}

// A container is one that buildah made from the image of this architecture.
type container struct {
	buildah []string // the command, with the flags that name its storage
	name    string
	mounts  []string
}

func newContainer(t *testing.T, layout string) *container {
	t.Helper()
	dir := rootTempDir(t)
	c := &container{buildah: asRoot(t, "buildah",
		"--storage-driver", "vfs", "--root", filepath.Join(dir, "storage"), "--runroot", filepath.Join(dir, "run"))}
	c.name = strings.TrimSpace(runLine(t, c.line("from", "--quiet", "oci:"+layout)))
	t.Cleanup(func() { runLine(t, c.line("rm", "--all")) })
	return c
}

func (c *container) line(args ...string) []string { return slices.Concat(c.buildah, args) }

// runLine runs a command that has to succeed.
func runLine(t *testing.T, line []string) string {
	t.Helper()
	return command(t, nil, line[0], line[1:]...)
}

// run runs the image's program under its user.
func (c *container) run(args ...string) (string, error) {
	line := c.line("run", "--isolation", "chroot")
	for _, mount := range c.mounts {
		line = append(line, "--volume", mount)
	}
	line = slices.Concat(line, []string{c.name, "/vllm-vcr"}, args)
	out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
	return string(out), err
}

// runReadOnly runs the program with a file system that nobody can write, without an environment, /proc and /tmp.
func (c *container) runReadOnly(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := strings.TrimSpace(runLine(t, c.line("mount", c.name)))
	const setUp = `set -e; root=$1; shift; PATH=$PATH:/usr/sbin
chroot=$(command -v chroot)
mount --bind "$root" "$root"; mount -o remount,ro,bind "$root"
if touch "$root/written" 2>/dev/null; then echo 'it can be written'; exit 9; fi
exec env -i "$chroot" --userspec=65532:65532 "$root" /vllm-vcr "$@"`
	line := append(asRoot(t, "unshare", "--mount", "bash", "-c", setUp, "bash", root), args...)
	out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
	return string(out), err
}

// TestServeImage builds the image of serve for one line and uses it as a careful user would: as nobody, with a root that cannot be
// written, without /tmp, /proc and a shell. Only /dev is there, as in every container.
func TestServeImage(t *testing.T) {
	testenv.ImageTool(t, "buildah")
	testenv.ImageTool(t, "skopeo")
	if runtime.GOARCH != "amd64" {
		t.Skip("the image of serve is for linux/amd64")
	}
	frontend := testenv.Frontend(t, "0.33.0") // PEERS/frontends/0.33.0/vllm-rs
	_, product := imageArchives(t)
	layout := filepath.Join(rootTempDir(t), "layout")
	env := []string{"DIST=" + product, "PEERS=" + filepath.Dir(filepath.Dir(filepath.Dir(frontend)))}
	out, code := script(t, env, "", "image-serve", imageVersion, "0.33.0", layout, "abc")
	if code != 0 || strings.TrimSpace(out) != rawDigest(t, "oci:"+layout) {
		t.Fatalf("scripts/image-serve: exit code %d, want the digest alone:\n%s", code, out)
	}
	c := newContainer(t, layout)
	root := strings.TrimSpace(runLine(t, c.line("mount", c.name)))
	var size int64
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err == nil && entry.Name() != "vllm-rs" {
			size += info.Size()
		}
		if name := entry.Name(); name == "sh" || name == "bash" || name == "busybox" {
			t.Errorf("%s is a shell", path)
		}
		return err
	})
	require.True(t, err == nil && size <= 80<<20, "beside the frontend the image has %d bytes, want at most 80 MB; %v", size, err)
	var image struct {
		Config struct {
			User            string
			Env, Entrypoint []string
			Labels          map[string]string
		}
	}
	require.NoError(t, json.Unmarshal([]byte(command(t, nil, "skopeo", "inspect", "--config", "oci:"+layout)), &image))
	if image.Config.User != "65532:65532" || fmt.Sprint(image.Config.Entrypoint) != "[/vllm-vcr serve]" || image.Config.Labels["org.opencontainers.image.version"] != imageVersion {
		t.Errorf("got %+v", image.Config)
	}
	const setUp = `set -e; root=$1; shift; PATH=$PATH:/usr/sbin
chroot=$(command -v chroot)
mkdir -p "$root/dev"; mount --bind "$root" "$root"; mount --bind /dev "$root/dev"; mount -o remount,ro,bind "$root"
exec env -i "${@:2:$1}" "$chroot" --userspec=65532:65532 "$root" "${@:$1+2}"`
	args := append([]string{strconv.Itoa(len(image.Config.Env))}, image.Config.Env...)
	args = append(append(args, image.Config.Entrypoint...), "Qwen/Qwen3-8B", "--port", "0", "--host", "127.0.0.1")
	line := append(asRoot(t, "unshare", "--mount", "bash", "-c", setUp, "bash", root), args...)
	ready, into := io.Pipe()
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Stdout = into
	server := testenv.Process(t, "serve", cmd)
	go func() { <-server.Done(); into.Close() }()
	text, err := bufio.NewReader(ready).ReadString('\n')
	at, isReady := strings.CutPrefix(text, "ready: ")
	if err != nil || !isReady || !strings.Contains(text, "(model Qwen/Qwen3-8B, vllm-rs of vLLM 0.33.0,") {
		t.Fatalf("%q: %v\n%s", text, err, server.Tail())
	}
	url, _, _ := strings.Cut(at, " ")
	answer, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(`{"model": "Qwen/Qwen3-8B", "messages": [{"role": "user", "content": "Hello"}]}`))
	require.NoError(t, err)
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(body), `"finish_reason":"stop"`) {
		t.Errorf("%d %s %v", answer.StatusCode, body, err)
	}
}

const imageVersion = "0.0.0-test"

var archivesOnce sync.Once

// imageArchives are folders of archives for images: of small programs, and with the product in place of one of them, that of the
// architecture of this machine.
func imageArchives(t *testing.T) (small, product string) {
	t.Helper()
	testenv.Slow(t, "builds images")
	small, product = filepath.Join(sharedDir(t), "small"), filepath.Join(sharedDir(t), "product")
	archivesOnce.Do(func() {
		binary, work := builtProduct(t), t.TempDir()
		here, err := os.Getwd()
		require.NoError(t, err)
		mustDist(t, fixture(t), "build", "-version", imageVersion, "-targets", "linux/amd64,linux/arm64", "-out", small)
		t.Chdir(here)
		require.NoError(t, os.CopyFS(product, os.DirFS(small)))
		own := filepath.Join(product, fmt.Sprintf("vllm-vcr_%s_linux_%s%s", imageVersion, runtime.GOARCH, archiveSuffix))
		command(t, nil, "tar", "-xzf", own, "-C", work)
		command(t, nil, "cp", binary, filepath.Join(work, "vllm-vcr"))
		command(t, nil, "tar", "-czf", own, "-C", work, "vllm-vcr", "vllm-vcr-cluster", "vllm-vcr-dataset")
	})
	return small, product
}

// buildImage builds an image, of small programs unless DIST is given, and returns its layout. Of settings, REVISION is an argument
// and the others environment.
func buildImage(t *testing.T, settings ...string) string {
	t.Helper()
	small, _ := imageArchives(t)
	layout, revision := filepath.Join(rootTempDir(t), "layout"), "abc"
	for _, s := range settings {
		if value, ok := strings.CutPrefix(s, "REVISION="); ok {
			revision = value
		}
	}
	out, code := script(t, append([]string{"DIST=" + small}, settings...), "", "image", imageVersion, layout, revision)
	if code != 0 || strings.TrimSpace(out) != rawDigest(t, "oci:"+layout) {
		t.Fatalf("scripts/image: exit code %d, want the digest alone:\n%s", code, out)
	}
	return layout
}

func TestImageRefuses(t *testing.T) {
	testenv.ImageTool(t, "buildah")
	testenv.ImageTool(t, "skopeo")
	empty := t.TempDir()
	write(t, empty, map[string]string{"empty.crt": "no certificate\n"})
	tests := []struct {
		name string
		env  []string
		args []string
		code int
		want string
	}{
		{name: "no arguments", code: 2, want: "scripts/image VERSION LAYOUT"},
		{name: "nothing built", env: []string{"DIST=" + empty}, args: []string{"1.2.3", empty + "/new"}, code: 1, want: "vllm-vcr_1.2.3_linux_amd64.tar.gz: run make dist VERSION=1.2.3"},
		{name: "no certificates", env: []string{"CA_BUNDLE=" + empty + "/empty.crt"}, args: []string{"1.2.3", empty + "/new"}, code: 1, want: "empty.crt holds no certificate"},
		{name: "in the way", args: []string{"1.2.3", empty}, code: 1, want: "exists already"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			out, code := script(t, test.env, "", "image", test.args...)
			require.True(t, code == test.code && strings.Contains(out, test.want), "exit code %d, want %d and %q:\n%s", code, test.code, test.want, out)
			if _, err := os.Stat(empty + "/new"); err == nil {
				t.Error("it left a layout")
			}
		})
	}
}

func rawDigest(t *testing.T, image string) string {
	t.Helper()
	out := command(t, nil, "bash", "-c", `skopeo inspect --raw "$1" | sha256sum | cut -d' ' -f1`, "bash", image)
	return "sha256:" + strings.TrimSpace(out)
}

func decode(t *testing.T, path string, to any) {
	t.Helper()
	require.NoErrorf(t, json.Unmarshal([]byte(read(t, path)), to), "%s", path)
}
