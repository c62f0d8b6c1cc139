/* The page begins. */

patterns();
openTools();
openTurns();
openSpeed();
openMeasured();
byId("made").textContent = DATA.made;
spell();
