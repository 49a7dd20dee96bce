// Package config reads the file of --cloud-config: where the cloud is, whose token is used, which project is expected,
// and how many calls are made. example.yaml shows every field. Begin with Config and Read.
package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// Config is the content of --cloud-config, as YAML. Each field can be set or overridden by the environment variable in
// its tag.
type Config struct {
	// URL of the cloud's API.
	URL string `json:"url" env:"FAKECLOUD_URL"`
	// TokenFile holds the bearer token; it is read again for every call, so that rotating it needs no restart.
	TokenFile string `json:"tokenFile" env:"FAKECLOUD_TOKEN_FILE"`
	// Project is the name or ID of the project with this cluster's instances. Answers of another are not used.
	Project string `json:"project" env:"FAKECLOUD_PROJECT"`
	// CAFile is a PEM bundle to verify an https URL with. Empty means the system's. It is read again
	// for every call, as TokenFile is.
	CAFile string `json:"caFile,omitempty" env:"FAKECLOUD_CA_FILE"`
	// Cache says whether instances, balancers and routes are remembered, and kept up to date by the cloud's events.
	Cache bool `json:"cache" env:"FAKECLOUD_CACHE"`
	// QPS is how many calls a second may be sent, in the long run; 0 means any number.
	QPS float64 `json:"qps" env:"FAKECLOUD_QPS"`
	// Burst is how many calls may be sent at once.
	Burst int `json:"burst" env:"FAKECLOUD_BURST"`
	// MassDeletion says when the removal of Nodes is stopped.
	MassDeletion MassDeletion `json:"massDeletion"`
	// NodeLabels says which tags of an instance become labels of its Node.
	NodeLabels NodeLabels `json:"nodeLabels"`
	// NodeAddresses says which of an instance's addresses its Node has.
	NodeAddresses NodeAddresses `json:"nodeAddresses"`
	// LoadBalancer is about the balancers of all Services.
	LoadBalancer LoadBalancer `json:"loadBalancer"`
}

// NodeAddresses says which of an instance's addresses its Node has.
type NodeAddresses struct {
	// Families are ipv4, ipv6 or both. Addresses of the first family come first, of each type.
	Families []string `json:"families" env:"FAKECLOUD_NODE_ADDRESSES_FAMILIES"`
	// InternalRanges are CIDRs, such as that of one of the instance's networks. Internal addresses
	// outside of them do not count; without ranges all do.
	InternalRanges []string `json:"internalRanges,omitempty" env:"FAKECLOUD_NODE_ADDRESSES_INTERNAL_RANGES"`
}

// LoadBalancer is about the balancers of all Services.
type LoadBalancer struct {
	// Defaults are annotations, without their prefix, for every Service that does not have them itself. One that is
	// invalid for a Service is ignored there.
	Defaults map[string]string `json:"defaults,omitempty" env:"FAKECLOUD_LOAD_BALANCER_DEFAULTS"`
}

// MassDeletion says how many Nodes may be deleted before the CCM stops: an error that makes many instances look gone
// must not cost a cluster its Nodes. The same numbers hold for load balancers without a Service.
type MassDeletion struct {
	// Share of all Nodes, over 0 and up to 1, that may be deleted within Window. It is
	// rounded up, so that one Node always may. Of Nodes that are Ready half of it may.
	Share float64 `json:"share" env:"FAKECLOUD_MASS_DELETION_SHARE"`
	// Minimum is how many may be deleted whatever their share is.
	Minimum int `json:"minimum" env:"FAKECLOUD_MASS_DELETION_MINIMUM"`
	// Window is the time over which deletions are counted, from the first one on.
	Window metav1.Duration `json:"window" env:"FAKECLOUD_MASS_DELETION_WINDOW"`
	// Hold is how long the Nodes over the share are kept unless somebody confirms their deletion.
	// Then another share may go.
	Hold metav1.Duration `json:"hold" env:"FAKECLOUD_MASS_DELETION_HOLD"`
}

// NodeLabels says which tags KEY=VALUE of an instance become labels PrefixKEY=VALUE of its Node.
type NodeLabels struct {
	// Tags are the keys of those tags, none by default.
	Tags []string `json:"tags,omitempty" env:"FAKECLOUD_NODE_LABELS_TAGS"`
	// Prefix is a DNS name and a slash.
	Prefix string `json:"prefix" env:"FAKECLOUD_NODE_LABELS_PREFIX"`
}

// Default is the configuration without a file or an environment. It suits a cluster of 1,000 Nodes.
func Default() Config {
	return Config{
		Cache: true,
		// Half of what fakecloud allows each token by default (500 and 1,000). This is enough for 1,000 routes in
		// about two seconds, and leaves calls to a standby or an operator with the same token.
		QPS: 250, Burst: 500,
		MassDeletion: MassDeletion{
			// A zone of three may go at once. Of three Nodes one may, of five two.
			Share: 0.33, Minimum: 1,
			// In an hour also a cloud that takes seconds for each answer has been asked about all Nodes. In half an hour
			// somebody who is on call has looked.
			Window: metav1.Duration{Duration: time.Hour}, Hold: metav1.Duration{Duration: 30 * time.Minute},
		},
		NodeLabels:    NodeLabels{Prefix: "tags.fakecloud.ccmlab.io/"},
		NodeAddresses: NodeAddresses{Families: []string{"ipv4", "ipv6"}},
	}
}

// Read parses the file, overrides it from the environment and validates it. Its error names everything that is wrong.
// A nil r means that there is no file.
func Read(r io.Reader, getenv func(string) string) (Config, error) {
	c := Default()
	var given map[string]any
	var errs []error
	if r != nil {
		data, err := io.ReadAll(r)
		if err != nil {
			return c, fmt.Errorf("reading the cloud config: %w", err)
		}
		if given, err = parseYAML(data); err != nil {
			errs = append(errs, err)
		}
	}
	unread := map[string]bool{}
	fillStruct(reflect.ValueOf(&c).Elem(), "", given, getenv, func(path, format string, args ...any) {
		errs, unread[path] = append(errs, fmt.Errorf(format, args...)), true
	})
	c.validate(func(ok bool, path, format string, args ...any) {
		if !ok && !unread[path] {
			errs = append(errs, fmt.Errorf(path+format, args...))
		}
	})
	if len(errs) > 0 {
		return c, fmt.Errorf("cloud config: %w", errors.Join(errs...))
	}
	return c, nil
}

// parseYAML leaves numbers as they are written, so that errors can quote them.
func parseYAML(data []byte) (given map[string]any, err error) {
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, fmt.Errorf("not readable as YAML: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&given); err != nil {
		return nil, errors.New("want fields such as `url: http://127.0.0.1:8470`, one on each line")
	}
	return given, nil
}

// checkFunc reports the field of that path unless ok. What it reports begins with the path.
type checkFunc func(ok bool, path, format string, args ...any)

// validate checks values. Their kinds have been checked by fillStruct.
func (c Config) validate(check checkFunc) {
	u, err := url.Parse(c.URL)
	isURL := err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
	check(c.URL != "", "url", " (or FAKECLOUD_URL) is missing")
	check(c.URL == "" || isURL, "url", " %q: want http://host:port or https://host:port", c.URL)
	token, err := os.ReadFile(c.TokenFile)
	check(c.TokenFile != "", "tokenFile", " (or FAKECLOUD_TOKEN_FILE) is missing")
	check(c.TokenFile == "" || err == nil, "tokenFile", ": %w", err)
	check(err != nil || strings.TrimSpace(string(token)) != "", "tokenFile",
		" %s is empty: want a bearer token in it", c.TokenFile)
	check(c.Project != "", "project", " (or FAKECLOUD_PROJECT) is missing")
	_, err = os.ReadFile(c.CAFile)
	check(c.CAFile == "" || err == nil, "caFile", ": %w", err)
	check(c.QPS >= 0, "qps", " %g: want calls a second, e.g. 250, or 0 for any number", c.QPS)
	check(c.QPS <= 0 || c.Burst >= 1, "burst", " %d: want 1 or more calls at once, e.g. 500", c.Burst)
	c.MassDeletion.validate(check)
	c.NodeLabels.validate(check)
	c.NodeAddresses.validate(check)
	given := map[string]string{}
	for name, value := range c.LoadBalancer.Defaults {
		given[annotations.Prefix+name] = value
	}
	_, err = annotations.Parse(given)
	check(err == nil, "loadBalancer.defaults", ": %w", err)
}

func (m MassDeletion) validate(check checkFunc) {
	check(m.Share > 0 && m.Share <= 1, // NaN is neither.
		"massDeletion.share", " %g: want a share of all Nodes above 0 and up to 1, e.g. 0.33", m.Share)
	check(m.Minimum >= 0, "massDeletion.minimum", " %d: want a number of Nodes of 0 or more, e.g. 1", m.Minimum)
	check(m.Window.Duration > 0, "massDeletion.window", " %s: want a duration over 0, e.g. 1h", m.Window.Duration)
	check(m.Hold.Duration > 0, "massDeletion.hold", " %s: want a duration over 0, e.g. 30m", m.Hold.Duration)
}

func (n NodeLabels) validate(check checkFunc) {
	name, slash := strings.CutSuffix(n.Prefix, "/")
	isPrefix := slash && len(validation.IsDNS1123Subdomain(name)) == 0
	check(isPrefix, "nodeLabels.prefix", " %q: want a DNS name and a slash, e.g. tags.fakecloud.ccmlab.io/", n.Prefix)
	// The kubelet and Kubernetes itself give these a meaning.
	isReserved := strings.HasSuffix("."+name, ".kubernetes.io") || strings.HasSuffix("."+name, ".k8s.io")
	check(!isPrefix || !isReserved, "nodeLabels.prefix", " %q: kubernetes.io/ and k8s.io/ are Kubernetes' own; "+
		"want one of yours, e.g. tags.fakecloud.ccmlab.io/", n.Prefix)
	for _, tag := range n.Tags {
		check(len(validation.IsQualifiedName(tag)) == 0 && !strings.Contains(tag, "/"), "nodeLabels.tags",
			" %q: want keys of tags that can be the name of a label (letters, digits, '-', '_', '.'; 63 at most)", tag)
	}
}

func (n NodeAddresses) validate(check checkFunc) {
	orders := []string{"ipv4,ipv6", "ipv6,ipv4", "ipv4", "ipv6"}
	check(slices.Contains(orders, strings.Join(n.Families, ",")), "nodeAddresses.families",
		" %q: want ipv4, ipv6 or both, the preferred one first, e.g. [ipv4, ipv6]", n.Families)
	for _, r := range n.InternalRanges {
		_, err := netip.ParsePrefix(r)
		check(err == nil, "nodeAddresses.internalRanges", " %q: want CIDRs, e.g. 10.0.0.0/16", r)
	}
}

// Client builds the cloud client that this configuration describes. Its calls go through wrap.
func (c Config) Client(userAgent string, wrap func(http.RoundTripper) http.RoundTripper) (*client.Client, error) {
	return client.New(client.Config{
		URL: c.URL, TokenFile: c.TokenFile, CAFile: c.CAFile, UserAgent: userAgent,
		Wrap:   wrap,
		Report: func(err error) { klog.ErrorS(err, "Cannot reload the cloud's CA file") },
	})
}

// Token is a hash of what is in TokenFile, by which tokens can be told apart without
// keeping one in memory. It is "" while the file cannot be read.
func (c Config) Token() string {
	content, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(bytes.TrimSpace(content))
	return hex.EncodeToString(sum[:])
}
