package deploy_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/target"
)

func TestReplayFiles(t *testing.T) {
	hub := deploy.Replay{
		Target: onGPU(), Frontend: deploy.Python, Source: []string{"--bucket", "s3://goldens/prefix"},
		Namespace: "vllm-vcr", TokenSecret: "hub",
	}
	tests := []struct {
		name   string
		replay deploy.Replay
	}{
		{name: "rust", replay: deploy.Replay{Target: onCPU(), Frontend: deploy.Rust, Namespace: "vllm-vcr"}},
		{name: "python", replay: hub},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			objects, err := test.replay.Objects()
			if err != nil {
				t.Fatal(err)
			}
			compare(t, "replay-"+test.name, objects...)
			pod := objects[0].(*deploy.Deployment).Spec.Template.Spec
			checkSecurity(t, pod)
			if objects[0].(*deploy.Deployment).Spec.Strategy.Type != "Recreate" {
				t.Error("two players would register with one frontend")
			}
		})
	}
}

func TestReplayErrors(t *testing.T) {
	tests := []struct {
		name string
		edit func(*deploy.Replay)
		want string
	}{
		{name: "frontend", edit: func(p *deploy.Replay) { p.Frontend = "go" }, want: `frontend "go": want one of ["rust" "python"]`},
		{
			name: "no images", edit: func(p *deploy.Replay) { p.Target.Images = target.Images{} },
			want: "no image of the frontend is given",
		},
		{
			name: "image by tag", edit: func(p *deploy.Replay) { p.Target.Images.Tap = "x:latest" },
			want: `image of vllm-vcr: "x:latest" has no digest`,
		},
		{
			name: "name too long", edit: func(p *deploy.Replay) { p.Target.ID = strings.Repeat("a", 60) },
			want: "no Service can be called",
		},
		{
			name: "a folder", edit: func(p *deploy.Replay) { p.Target.Model.Source = "./weights" },
			want: "is the folder weights, which no pod has",
		},
		{name: "namespace", edit: func(p *deploy.Replay) { p.Namespace = "A" }, want: `namespace "A"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			replay := deploy.Replay{Target: onCPU(), Frontend: deploy.Rust}
			test.edit(&replay)
			_, err := replay.Objects()
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want it to contain %q", err, test.want)
			}
		})
	}
}

func TestSetupErrors(t *testing.T) {
	const list = "d/kustomization.yaml"
	tests := []struct {
		name  string
		files map[string]string
		want  string
	}{
		{name: "no list", want: "d/kustomization.yaml"},
		{name: "no YAML", files: map[string]string{list: "\t"}, want: list + ": "},
		{name: "nothing", files: map[string]string{list: "resources: []"}, want: list + ": names no objects"},
		{name: "a file that is not there", files: map[string]string{list: "resources: [a.yaml]"}, want: "d/a.yaml"},
		{
			name: "no object", files: map[string]string{list: "resources: [a.yaml]", "d/a.yaml": "kind: A\n---\n# nothing\n"},
			want: "d/a.yaml: has a document that is not an object",
		},
		{name: "no queue", files: map[string]string{list: "resources: [a.yaml]", "d/a.yaml": "kind: A"}, want: "there is no ClusterQueue"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			files := fstest.MapFS{}
			for name, text := range test.files {
				files[name] = &fstest.MapFile{Data: []byte(text)}
			}
			objects, err := deploy.Setup(files, "d")
			if err == nil {
				_, err = deploy.QuotaOf(objects)
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want it to contain %q", err, test.want)
			}
		})
	}
}
