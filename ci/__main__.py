from ci.cli import main

main()
