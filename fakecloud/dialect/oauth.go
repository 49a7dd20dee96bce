package dialect

import (
	"context"
	"net/http"
	"net/url"

	"github.com/ccmlab/ccmlab/fakecloud/server"
)

// GrantToken is a call that gives an access token by OAuth 2's client credentials (RFC 6749, section 4.4). The
// client is known by HTTP Basic: its secret is a token's, whatever its ID.
func GrantToken(path string) Call {
	return Call{
		Method: http.MethodPost, Path: path, forViewers: true, basicAuth: true, status: http.StatusOK,
		decode: func(raw []byte) (any, []string, error) {
			form, err := url.ParseQuery(string(raw))
			if err != nil {
				return nil, nil, Invalid("body", "is no form: %v", err)
			}
			var unread []string
			for field := range form {
				if field != "grant_type" && field != "scope" {
					unread = append(unread, field)
				}
			}
			return form, unread, nil
		},
		do: func(ctx context.Context, r *Request, body any) (any, error) {
			return grantToken(ctx, r, body.(url.Values))
		},
	}
}

func grantToken(ctx context.Context, r *Request, form url.Values) (any, error) {
	if grant := form.Get("grant_type"); grant != "client_credentials" {
		code := "unsupported_grant_type"
		if grant == "" {
			code = "invalid_request"
		}
		return &Answer{Status: http.StatusBadRequest, Body: struct {
			Error       string `json:"error"`
			Description string `json:"error_description"`
		}{code, "grant_type must be client_credentials"}}, nil
	}
	granted, err := r.Cloud.GrantAccess(ctx, server.CallerSecret(r.HTTP))
	if err != nil {
		return nil, err
	}
	return struct {
		AccessToken string `json:"access_token"`
		TokenType   string `json:"token_type"`
		ExpiresIn   int    `json:"expires_in"` // seconds
		Scope       string `json:"scope,omitempty"`
	}{granted.Secret, "Bearer", int(granted.Lifetime.Seconds()), form.Get("scope")}, nil
}
