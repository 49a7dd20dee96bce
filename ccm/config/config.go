// Package config reads the file behind --cloud-config: where the cloud is, who
// we are there, and which project we expect to be in.
package config

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// Config is the content of --cloud-config, as YAML. Each field can be set or
// overridden by the environment variable named beside it.
type Config struct {
	// URL of the cloud's API. FAKECLOUD_URL.
	URL string `json:"url"`
	// TokenFile holds the bearer token; it is read again for every call, so
	// that rotating it needs no restart. FAKECLOUD_TOKEN_FILE.
	TokenFile string `json:"tokenFile"`
	// Project is the name or ID of the project that holds this cluster's
	// instances. "No such instance" is believed only from this project.
	// FAKECLOUD_PROJECT.
	Project string `json:"project"`
	// CAFile is a PEM bundle to verify an https URL with; the system's when
	// empty. FAKECLOUD_CA_FILE.
	CAFile string `json:"caFile,omitempty"`
	// Cache, true unless said otherwise, has instances, balancers and routes
	// remembered and kept up to date by the cloud's events. FAKECLOUD_CACHE.
	Cache bool `json:"cache"`
}

// Read parses, overrides from the environment and validates. It reports
// everything that is wrong at once.
func Read(r io.Reader, getenv func(string) string) (Config, error) {
	c := Config{Cache: true}
	if r != nil {
		data, err := io.ReadAll(r)
		if err != nil {
			return c, fmt.Errorf("reading the cloud config: %w", err)
		}
		if err := yaml.UnmarshalStrict(data, &c); err != nil {
			return c, fmt.Errorf("cloud config: %w", err)
		}
	}
	for env, field := range map[string]*string{
		"FAKECLOUD_URL":        &c.URL,
		"FAKECLOUD_TOKEN_FILE": &c.TokenFile,
		"FAKECLOUD_PROJECT":    &c.Project,
		"FAKECLOUD_CA_FILE":    &c.CAFile,
	} {
		if v := getenv(env); v != "" {
			*field = v
		}
	}
	var err error
	if v := getenv("FAKECLOUD_CACHE"); v != "" {
		if c.Cache, err = strconv.ParseBool(v); err != nil {
			err = fmt.Errorf("cloud config: FAKECLOUD_CACHE is %q; want true or false", v)
		}
	}
	return c, errors.Join(err, c.validate())
}

func (c Config) validate() error {
	var errs []error
	if u, err := url.Parse(c.URL); c.URL == "" {
		errs = append(errs, errors.New("url (or FAKECLOUD_URL) is missing"))
	} else if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		errs = append(errs, fmt.Errorf("url %q: want http://host:port or https://host:port", c.URL))
	}
	if c.TokenFile == "" {
		errs = append(errs, errors.New("tokenFile (or FAKECLOUD_TOKEN_FILE) is missing"))
	} else if token, err := os.ReadFile(c.TokenFile); err != nil {
		errs = append(errs, fmt.Errorf("tokenFile: %w", err))
	} else if strings.TrimSpace(string(token)) == "" {
		errs = append(errs, fmt.Errorf("tokenFile %s is empty", c.TokenFile))
	}
	if c.Project == "" {
		errs = append(errs, errors.New("project (or FAKECLOUD_PROJECT) is missing"))
	}
	if c.CAFile != "" {
		if _, err := os.ReadFile(c.CAFile); err != nil {
			errs = append(errs, fmt.Errorf("caFile: %w", err))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("cloud config: %w", errors.Join(errs...))
	}
	return nil
}

// Client builds the cloud client that this configuration describes.
func (c Config) Client(userAgent string) (*client.Client, error) {
	return client.New(client.Config{URL: c.URL, TokenFile: c.TokenFile, CAFile: c.CAFile, UserAgent: userAgent})
}
