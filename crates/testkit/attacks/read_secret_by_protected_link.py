# name: read a secret through a protected name that is a link out of the workspace
# line: 50
from attack import secret_at, try_each

try_each([(".idea", lambda: secret_at(".idea/id_rsa")), (".envrc", lambda: secret_at(".envrc"))])
