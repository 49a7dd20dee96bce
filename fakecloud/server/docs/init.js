"use strict";
SwaggerUIBundle({
  url: "../openapi.yaml",
  dom_id: "#ui",
  deepLinking: true,
  docExpansion: "none",
  // Nothing is asked of other hosts.
  validatorUrl: null,
});
