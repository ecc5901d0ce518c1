# Sets GOFSDP_CACHE to the folder that `gofsdp setup` keeps downloads in: $GOFSDP_CACHE, or gofsdp in the user's cache.
if(DEFINED ENV{GOFSDP_CACHE})
  set(GOFSDP_CACHE "$ENV{GOFSDP_CACHE}")
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(GOFSDP_CACHE "$ENV{XDG_CACHE_HOME}/gofsdp")
else()
  set(GOFSDP_CACHE "$ENV{HOME}/.cache/gofsdp")
endif()
